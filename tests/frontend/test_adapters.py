"""A LoRARequest becomes an adapter by its contents; files that were not touched are not read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.adapters import AdapterFolders, NoAdapters
from octavo.words.errors import RequestError
from octavo.words.lora import LoRARequest
from tests.tiny_adapters import save_tiny_adapter
from tests.tiny_models import save_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def folders(model: Path) -> AdapterFolders:
    return AdapterFolders(read_model_facts(resolve_model(str(model))), 8)


def test_contents_tell_adapters_apart_and_names_do_not(folders: AdapterFolders, model: Path, tmp_path: Path) -> None:
    first, second = (save_tiny_adapter(tmp_path / name, model, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    one, other, again = (
        folders.find(LoRARequest(name, 1, str(path))) for name, path in (("x", first), ("x", second), ("y", first))
    )
    assert one is not None and other is not None and again is not None
    assert one.content_hash == again.content_hash != other.content_hash
    assert (one.name, again.name, one.path) == ("x", "y", str(first))


def test_a_file_written_again_at_once_with_the_same_size_is_seen(
    folders: AdapterFolders, model: Path, tmp_path: Path
) -> None:
    found = []
    for seed in range(8):
        folder = save_tiny_adapter(tmp_path / "a", model, seed=seed)
        os.utime(folder / "adapter_model.safetensors", ns=(10**18, 10**18))
        found.append(folders.find(LoRARequest("a", 1, str(folder))))
    assert len({each.content_hash for each in found if each is not None}) == 8


@pytest.mark.parametrize("path", ["/nonexistent", "/etc", "https://example.com/adapter", "a\0b"])
def test_a_folder_that_holds_no_adapter_is_named(folders: AdapterFolders, path: str) -> None:
    with pytest.raises(RequestError, match="adapter 'x'"):
        folders.find(LoRARequest("x", 1, path))


def test_an_adapter_that_is_not_finite_is_refused_each_time(
    folders: AdapterFolders, model: Path, tmp_path: Path
) -> None:
    folder = save_tiny_adapter(tmp_path / "a", model, size=float("inf"))
    os.utime(folder / "adapter_model.safetensors", ns=(10**18, 10**18))
    for _ in range(2):
        with pytest.raises(RequestError, match=r"adapter 'x': .*lora_A.weight': holds NaN or infinity"):
            folders.find(LoRARequest("x", 1, str(folder)))


def test_what_is_no_lora_request_is_refused(folders: AdapterFolders) -> None:
    with pytest.raises(RequestError, match="must be a LoRARequest, got str"):
        folders.find("adapter")
    for name, path in (("", "/a"), ("x", ""), (7, "/a")):
        with pytest.raises(RequestError, match="must be text"):
            LoRARequest(name, 1, path)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="enable_lora"):
        NoAdapters().find(LoRARequest("x", 1, "/a"))
