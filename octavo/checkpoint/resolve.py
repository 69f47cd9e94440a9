"""From a model argument to files: a local folder, a ``.gguf`` file, a name in the cache, or a hub id."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from octavo.checkpoint.catalogue import CACHE_NAME, CATALOGUE, cached_models, models_dir, pull
from octavo.checkpoint.gguf_header import GGUFFile
from octavo.config.env import read_environment
from octavo.words.errors import CheckpointError, ModelNotFoundError

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?")
# What the engine reads of a hub repository; weights in other formats stay there.
_HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Where a model's files are. ``name`` is what was asked for.

    ``kind`` "hf" is a folder in Hugging Face's layout, and ``path`` that folder; "gguf" is one file, and ``path`` that
    file, whose header holds config and tokenizer too.
    """

    name: str
    path: Path
    kind: Literal["hf", "gguf"]

    @property
    def folder(self) -> Path:
        """The folder that holds the files."""
        return self.path if self.kind == "hf" else self.path.parent

    @cached_property
    def gguf(self) -> GGUFFile:
        """The header of a checkpoint of kind "gguf", read once: stepping over a vocabulary takes its time.

        Raises CheckpointError for a broken file, UnsupportedError for a version or type that is not known.
        """
        return GGUFFile.open(self.path)

    @property
    def config_path(self) -> Path | None:
        """``config.json``, which only a folder has."""
        return self.path / "config.json" if self.kind == "hf" else None


def resolve_model(name: str, *, revision: str | None = None, download_dir: str | Path | None = None) -> Checkpoint:
    """Find the files of ``name``; nothing is loaded, and nothing is downloaded but a hub id that is not cached yet.

    ``revision`` and ``download_dir`` concern hub ids. Raises ModelNotFoundError with every place that was looked at,
    CheckpointError for a folder that holds no model.
    """
    looked: list[str] = []
    found = _local(name, looked) or _cached(name, looked) or _hub(name, revision, download_dir, looked)
    if found is None:
        raise ModelNotFoundError(_not_found(name, looked))
    return found


def pull_model(name: str, *, revision: str | None = None, progress: bool = True) -> Path:
    """Download a catalogue name or a hub id and return its folder: what ``octavo pull NAME`` does."""
    if name in CATALOGUE or "/" not in name:
        return pull(name, progress=progress)
    repo, _, file = name.partition(":")
    if not _HUB_ID.fullmatch(repo) or (file and not _is_inner_gguf(file)):
        raise ModelNotFoundError(f"{name!r} is neither a catalogue name nor a hub id (owner/name or owner/name:f.gguf)")
    looked: list[str] = []
    folder = _snapshot(repo, revision, None, looked, patterns=(file,) if file else _HUB_FILES)
    if folder is None:
        raise ModelNotFoundError(f"cannot download {name!r}:" + "".join(f"\n  - {place}" for place in looked))
    return folder


def _local(name: str, looked: list[str]) -> Checkpoint | None:
    path = Path(name).expanduser()
    if name and path.is_dir():
        return _folder(name, path)
    if path.suffix == ".gguf" and path.is_file():
        return Checkpoint(name=name, path=path, kind="gguf")
    looked.append(f"local folder or .gguf file {path}")
    return None


def _cached(name: str, looked: list[str]) -> Checkpoint | None:
    """A name in the model cache is one plain path component, so it cannot lead out of the cache."""
    if not CACHE_NAME.fullmatch(name):
        return None
    path = models_dir() / name
    if path.is_dir():
        return _folder(name, path)
    looked.append(f"model cache {path}")
    return None


def _folder(name: str, path: Path) -> Checkpoint:
    """A folder is Hugging Face's layout if it has a config.json, else it must hold exactly one .gguf file."""
    if (path / "config.json").is_file():
        return Checkpoint(name=name, path=path, kind="hf")
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return Checkpoint(name=name, path=files[0], kind="gguf")
    if files:
        raise CheckpointError(path, f"holds {len(files)} .gguf files; name one: {', '.join(f.name for f in files)}")
    raise CheckpointError(path, "holds neither config.json nor a .gguf file (one file of a hub: owner/name:f.gguf)")


def _hub(name: str, revision: str | None, download_dir: str | Path | None, looked: list[str]) -> Checkpoint | None:
    repo, colon, file = name.partition(":")
    if not _HUB_ID.fullmatch(repo) or "/" not in repo:
        return None
    if not colon:
        folder = _snapshot(repo, revision, download_dir, looked)
        return _folder(name, folder) if folder else None
    if not _is_inner_gguf(file):
        looked.append(f"{name!r}: after the colon stands the path of a .gguf file inside the repository")
        return None
    folder = _snapshot(repo, revision, download_dir, looked, patterns=(file,))
    if folder is None or not (folder / file).is_file():
        looked.append(f"{file} in hub repository {repo}")
        return None
    return Checkpoint(name=name, path=folder / file, kind="gguf")


def _is_inner_gguf(file: str) -> bool:
    path = Path(file)
    return path.suffix == ".gguf" and ".." not in path.parts and not path.is_absolute()


def _snapshot(
    repo: str,
    revision: str | None,
    download_dir: str | Path | None,
    looked: list[str],
    patterns: tuple[str, ...] = _HUB_FILES,
) -> Path | None:
    """The repository's folder in the hub cache, downloaded if it is not there and the network may be used."""
    from huggingface_hub import snapshot_download

    def folder_or_reason(*, offline: bool) -> Path | str:
        try:
            return Path(
                snapshot_download(
                    repo,
                    revision=revision,
                    cache_dir=download_dir,
                    allow_patterns=list(patterns),
                    local_files_only=offline,
                )
            )
        except (OSError, ValueError, RuntimeError) as error:  # what the hub library raises, all of it
            return str(error).strip().partition("\n")[0] or type(error).__name__

    cached = folder_or_reason(offline=True)
    if isinstance(cached, Path) and any(any(cached.glob(pattern)) for pattern in patterns):
        return cached
    at = f" at revision {revision}" if revision else ""
    looked.append(f"hub cache {download_dir or _hub_cache()} for {repo}{at}")
    if read_environment().offline:
        looked.append("the hub was not asked: HF_HUB_OFFLINE=1")
        return None
    fetched = folder_or_reason(offline=False)
    if isinstance(fetched, Path):
        return fetched
    looked.append(f"the hub: {fetched}")
    return None


def _hub_cache() -> str:
    from huggingface_hub.constants import HF_HUB_CACHE

    return str(HF_HUB_CACHE)


def _not_found(name: str, looked: list[str]) -> str:
    places = "".join(f"\n  - {place}" for place in looked)
    return f"no model {name!r}. Looked at:{places}\n{_advice(name)}"


def _advice(name: str) -> str:
    repo = name.partition(":")[0]
    if name in CATALOGUE or ("/" in repo and _HUB_ID.fullmatch(repo)):
        return f"To get it: octavo pull {name}"
    near = difflib.get_close_matches(name, [*CATALOGUE, *cached_models()], n=1)
    if near:
        return f"Did you mean {near[0]!r}? To get it: octavo pull {near[0]}"
    return "To get a model: octavo pull NAME, with a name that `octavo models` lists or a hub id (owner/name)"
