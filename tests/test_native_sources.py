"""What the native library must not hold: names of architectures, a second thread pool, torch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.device.models.table import MODELS

REPOSITORY = Path(__file__).parents[1]
FAMILIES = {re.sub(r"\d+$", "", name) for name in MODELS} | {"smollm"}


def named_in(text: str) -> set[str]:
    """Families that a text names, as a word of its own or as part of one: Gemma3Layer, run_llama."""
    words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", text)}
    return FAMILIES & words


def test_no_source_file_names_an_architecture() -> None:
    assert named_in("struct Gemma3Layer {}; void run_llama();") == {"gemma", "llama"}
    sources = [path for path in (REPOSITORY / "csrc").rglob("*") if path.is_file()]
    assert len(sources) > 50
    assert {path.name: names for path in sources if (names := named_in(f"{path.name}\n{path.read_text()}"))} == {}


def test_the_library_starts_no_threads_but_its_own_and_knows_no_torch() -> None:
    native = pytest.importorskip("octavo._native", reason="built without the native module")
    library = Path(native.__file__).read_bytes()
    assert b"_M_start_thread" in library  # its own: names of what it calls can be found
    for name in (b"GOMP_", b"libgomp", b"__kmpc_", b"libiomp", b"libtorch", b"libc10"):
        assert name not in library
