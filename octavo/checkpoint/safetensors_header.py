"""Reads the headers of safetensors files, and believes none of their numbers.

Format: 8 bytes of little-endian header length, a JSON object {name: {dtype, shape, data_offsets: [begin, end]}}, then
the data, to which the offsets are relative. The ranges must cover the data without holes or overlap.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint.record import read_json_record
from octavo.words.errors import CheckpointError, ModelNotFoundError, UnsupportedError

MAX_HEADER_BYTES = 100_000_000
MAX_DIMENSIONS = 16
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
DTYPE_BYTES: Mapping[str, int] = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
}


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor: ``dtype`` as the format names it, ``offset`` from the start of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """One file and its tensors by name; every range lies inside the file."""

    path: Path
    tensors: Mapping[str, SafetensorsTensor]


def read_safetensors_folder(folder: Path) -> tuple[SafetensorsFile, ...]:
    """Return the headers of all weight files of a model folder.

    With an index the files are those it names; every one must be there and hold what the index says. Raises
    ModelNotFoundError where there are no weights, CheckpointError for a broken or missing file.
    """
    if (folder / SINGLE_FILE).exists() or not (folder / INDEX_FILE).exists():
        files = tuple(read_safetensors_header(path) for path in _unindexed_files(folder))
        _check_unique(files)
        return files
    return _read_indexed(folder / INDEX_FILE)


def read_safetensors_header(path: Path) -> SafetensorsFile:
    """Return the checked header of one file; CheckpointError names the file and, where it can, the tensor."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = _header_length(path, file.read(8), size)
            text = file.read(length)
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    entries = _parse(path, text)
    start = 8 + length
    tensors = {name: _tensor(path, name, entry, start, size) for name, entry in entries.items()}
    _check_coverage(path, tensors.values(), start, size)
    return SafetensorsFile(path, tensors)


def _header_length(path: Path, prefix: bytes, size: int) -> int:
    if len(prefix) < 8:
        raise CheckpointError(path, f"{size} bytes; a safetensors file has at least 8: it is truncated")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise CheckpointError(path, f"header length {length} is above {MAX_HEADER_BYTES}: not a safetensors file")
    if length > size - 8:
        raise CheckpointError(path, f"header of {length} bytes in a file of {size}: it is truncated")
    return length


def _parse(path: Path, text: bytes) -> dict[str, object]:
    try:
        entries = json.loads(text, object_pairs_hook=_unique)
    except RecursionError as error:
        raise CheckpointError(path, "header JSON nested too deeply") from error
    except ValueError as error:
        raise CheckpointError(path, f"header is not valid JSON: {error}") from error
    if not isinstance(entries, dict):
        raise CheckpointError(path, "header is not a JSON object")
    entries.pop("__metadata__", None)
    return entries


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"name {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return entries


def _tensor(path: Path, name: str, entry: object, start: int, size: int) -> SafetensorsTensor:
    def wrong(problem: str) -> CheckpointError:
        return CheckpointError(path, problem, tensor=name)

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise wrong("header entry lacks dtype, shape or data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise wrong(f"unknown dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}")
    if not _are_sizes(shape) or len(shape) > MAX_DIMENSIONS:
        raise wrong(f"shape {shape!r} is not a list of at most {MAX_DIMENSIONS} sizes")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong(f"data_offsets {offsets!r} are not [begin, end]")
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if nbytes != offsets[1] - offsets[0]:
        raise wrong(f"shape {shape} of {dtype} needs {nbytes} bytes, its data_offsets span {offsets[1] - offsets[0]}")
    if start + offsets[1] > size:
        raise wrong(f"ends at byte {start + offsets[1]} of a file of {size} bytes: the file is truncated")
    return SafetensorsTensor(name, dtype, tuple(shape), start + offsets[0], nbytes)


def _are_sizes(values: object) -> bool:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 2**63 for value in values)


def _check_coverage(path: Path, tensors: Iterable[SafetensorsTensor], start: int, size: int) -> None:
    end = start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            kind = "overlaps the tensor before it" if tensor.offset < end else "leaves a hole before it"
            raise CheckpointError(path, f"its range {kind}", tensor=tensor.name)
        end += tensor.nbytes
    if end != size:
        raise CheckpointError(path, f"{size - end} bytes after the last tensor belong to none")


def _unindexed_files(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).exists():
        return [folder / SINGLE_FILE]
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return found
    pickled = sorted(path.name for path in folder.glob("*.bin")) + sorted(path.name for path in folder.glob("*.pt*"))
    if pickled:
        raise UnsupportedError(
            f"{folder}: only pickled weights ({pickled[0]}), which can run code; convert the model to safetensors"
        )
    raise ModelNotFoundError(f"{folder}: no weights; {SINGLE_FILE}, {INDEX_FILE} or a .gguf file is needed")


def _read_indexed(index_path: Path) -> tuple[SafetensorsFile, ...]:
    index = read_json_record(index_path).record("weight_map")
    if index is None or not index.values:
        raise CheckpointError(index_path, "has no weight_map")
    shard_of = {name: _shard_name(index_path, name, shard) for name, shard in index.values.items()}
    shards = sorted(set(shard_of.values()))
    if missing := [shard for shard in shards if not (index_path.parent / shard).exists()]:
        raise CheckpointError(index_path, f"missing shards: {', '.join(missing)}")
    files = {shard: read_safetensors_header(index_path.parent / shard) for shard in shards}
    for name, shard in shard_of.items():
        if name not in files[shard].tensors:
            raise CheckpointError(files[shard].path, f"not in the file that {INDEX_FILE} names for it", tensor=name)
    _check_unique(files.values())
    return tuple(files.values())


def _shard_name(index_path: Path, tensor: str, shard: object) -> str:
    if not isinstance(shard, str) or Path(shard).name != shard or not shard.endswith(".safetensors"):
        raise CheckpointError(index_path, f"shard {shard!r} is not the name of a .safetensors file", tensor=tensor)
    return shard


def _check_unique(files: Iterable[SafetensorsFile]) -> None:
    seen: dict[str, Path] = {}
    for file in files:
        for name in file.tensors:
            if name in seen:
                raise CheckpointError(file.path, f"is in {seen[name].name} too", tensor=name)
            seen[name] = file.path
