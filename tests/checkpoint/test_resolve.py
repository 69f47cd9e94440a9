from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from octavo.checkpoint.catalogue import cached_models
from octavo.checkpoint.resolve import pull_model, resolve_model
from octavo.words.errors import CheckpointError, ModelNotFoundError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty model cache, and no network."""
    monkeypatch.setenv("OCTAVO_CACHE_ROOT", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path / "cache" / "models"


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def hub_snapshot(download_dir: Path, *files: str) -> Path:
    """A hub cache as huggingface-hub lays it out, with one downloaded repository."""
    repo = download_dir / "models--owner--name"
    touch(repo / "refs" / "main").write_text(COMMIT)
    for file in files:
        touch(repo / "snapshots" / COMMIT / file)
    return repo / "snapshots" / COMMIT


def test_a_local_folder_with_a_config_is_a_checkpoint(tmp_path: Path) -> None:
    config = touch(tmp_path / "model" / "config.json")
    found = resolve_model(str(tmp_path / "model"))
    assert (found.kind, found.path, found.folder, found.config_path) == ("hf", config.parent, config.parent, config)


def test_a_gguf_file_is_a_checkpoint(tmp_path: Path) -> None:
    file = touch(tmp_path / "model.gguf")
    found = resolve_model(str(file))
    assert (found.kind, found.path, found.folder, found.config_path) == ("gguf", file, tmp_path, None)


def test_a_folder_with_one_gguf_file_is_that_file(tmp_path: Path) -> None:
    file = touch(tmp_path / "model" / "q4.gguf")
    assert resolve_model(str(tmp_path / "model")).path == file


def test_a_folder_with_several_gguf_files_names_them(tmp_path: Path) -> None:
    touch(tmp_path / "model" / "q4.gguf")
    touch(tmp_path / "model" / "q8.gguf")
    with pytest.raises(CheckpointError, match="2 .gguf files.*q4.gguf, q8.gguf"):
        resolve_model(str(tmp_path / "model"))


def test_a_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="neither config.json nor a .gguf"):
        resolve_model(str(tmp_path))


def test_any_name_in_the_cache_resolves(cache: Path) -> None:
    file = touch(cache / "some-model.v2" / "x.gguf")
    touch(cache / "another" / "config.json")
    touch(cache / ".pull-unfinished" / "x.gguf")
    assert resolve_model("some-model.v2").path == file
    assert resolve_model("some-model.v2").name == "some-model.v2"
    assert cached_models() == ["another", "some-model.v2"]


def test_a_missing_catalogue_model_names_the_places_and_the_command(cache: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("smollm2-135m")
    assert str(cache / "smollm2-135m") in str(caught.value)
    assert str(caught.value).endswith("octavo pull smollm2-135m")


def test_a_misspelt_name_gets_the_nearest_one() -> None:
    with pytest.raises(ModelNotFoundError, match="Did you mean 'smollm2-135m'"):
        resolve_model("smolm2-135m")


@pytest.mark.parametrize("name", ["../secret", "models/../../secret", "owner/name:../../secret.gguf", ""])
def test_a_name_never_leads_out_of_the_cache(name: str, cache: Path, tmp_path: Path) -> None:
    touch(tmp_path / "cache" / "secret" / "config.json")
    cache.mkdir(parents=True, exist_ok=True)
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model(name, download_dir=tmp_path / "hub")
    assert "secret/config.json" not in str(caught.value)


def test_a_hub_id_is_found_in_the_hub_cache_without_the_network(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "config.json", "model.safetensors")
    found = resolve_model("owner/name", download_dir=tmp_path / "hub")
    assert (found.kind, found.path, found.name) == ("hf", snapshot, "owner/name")


def test_a_file_of_a_hub_repository_is_found(tmp_path: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "hub", "q4.gguf", "q8.gguf")
    found = resolve_model("owner/name:q8.gguf", download_dir=tmp_path / "hub")
    assert (found.kind, found.path) == ("gguf", snapshot / "q8.gguf")


def test_after_the_colon_stands_a_gguf_file(tmp_path: Path) -> None:
    hub_snapshot(tmp_path / "hub", "config.json")
    with pytest.raises(ModelNotFoundError, match="path of a .gguf file"):
        resolve_model("owner/name:config.json", download_dir=tmp_path / "hub")
    with pytest.raises(ModelNotFoundError, match="owner/name:f.gguf"):
        pull_model("owner/name:../x.gguf")


def test_a_hub_id_that_is_not_cached_names_places_and_command(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        resolve_model("owner/name", revision="v2", download_dir=tmp_path / "hub")
    message = str(caught.value)
    assert f"hub cache {tmp_path / 'hub'} for owner/name at revision v2" in message
    assert "HF_HUB_OFFLINE=1" in message
    assert message.endswith("octavo pull owner/name")


def test_offline_no_socket_is_opened(tmp_path: Path) -> None:
    script = f"""
import sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit("a socket was used")
sys.addaudithook(refuse)
from octavo.checkpoint.resolve import pull_model, resolve_model
from octavo.words.errors import ModelNotFoundError
for ask in (lambda: resolve_model("owner/name", download_dir={str(tmp_path)!r}), lambda: pull_model("owner/name"),
            lambda: pull_model("smollm2-135m")):
    try:
        ask()
    except ModelNotFoundError:
        print("not found")
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (run.returncode, run.stdout.split("\n")[:3]) == (0, ["not found"] * 3), run.stderr
