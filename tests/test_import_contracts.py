"""What the import contracts promise, at run time: each torch-free package is imported alone, in a fresh process."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import octavo

TORCH_FREE = (
    "octavo.words",
    "octavo.util",
    "octavo.config",
    "octavo.checkpoint",
    "octavo.tokenizer",
    "octavo.plan",
    "octavo.device.platform",
    "octavo.control",
    "octavo.executor",
    "octavo.engine",
    "octavo.frontend",
    "octavo.bench",
    "octavo.server",
    "octavo.cli",
)
HEAVY = {"torch", "transformers"}


def modules_of(package: str) -> list[str]:
    folder = Path(octavo.__file__).parent.joinpath(*package.split(".")[1:])
    found = [each.name for each in pkgutil.walk_packages([str(folder)], prefix=f"{package}.")]
    return [package, *(name for name in found if not name.endswith("__main__"))]


def loaded_by(statement: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after ``statement``."""
    script = f"import sys\n{statement}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize("package", TORCH_FREE)
def test_every_module_of_a_torch_free_package_loads_without_torch(package: str) -> None:
    names = modules_of(package)
    loaded = loaded_by("\n".join(f"import {name}" for name in names))
    assert "octavo" in loaded
    assert not loaded & HEAVY


def test_the_check_sees_torch_where_it_is_loaded() -> None:
    assert "torch" in loaded_by("import octavo.device.ops.linear")


def test_importing_octavo_imports_nothing_heavy() -> None:
    heavy = HEAVY | {"numpy", "msgspec", "zmq", "tokenizers", "jinja2", "huggingface_hub", "tqdm"}
    assert not loaded_by("import octavo; octavo.__version__") & heavy


def test_public_names_are_there_and_without_torch() -> None:
    names = [name for name in octavo.__all__ if not name.startswith("_")]
    assert not loaded_by("import octavo\n" + "\n".join(f"octavo.{name}" for name in names)) & HEAVY


def test_an_unknown_public_name_says_what_there_is() -> None:
    with pytest.raises(AttributeError, match="'Llm'.*LLM"):
        _ = octavo.Llm  # type: ignore[attr-defined]
