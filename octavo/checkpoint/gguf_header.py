"""Reads the header of a GGUF file (versions 2 and 3), and believes none of its numbers.

Format: magic, version, number of tensors, number of key-value pairs, the pairs (key, value type, value), the tensor
infos (name, dimensions from the fastest, type, offset), padding to ``general.alignment``, the data. Every length,
count and offset is checked against the file before it is used, and long arrays are decoded when first read.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from octavo.words.errors import CheckpointError, UnsupportedError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4
MIN_PAIR_BYTES = 13
MIN_TENSOR_INFO_BYTES = 24
STRING, ARRAY, BOOL = 8, 9, 7
SCALAR_FORMATS: Mapping[int, str] = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    BOOL: "?",
    10: "Q",
    11: "q",
    12: "d",
}
SCALARS: Mapping[int, struct.Struct] = {kind: struct.Struct(f"<{code}") for kind, code in SCALAR_FORMATS.items()}
U32 = SCALARS[4]
U64 = SCALARS[10]


@dataclass(frozen=True, slots=True)
class TensorType:
    """A storage type: ``block_size`` elements in ``block_bytes`` bytes."""

    name: str
    block_size: int
    block_bytes: int


TENSOR_TYPES: Mapping[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    9: TensorType("Q8_1", 32, 40),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
}


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor: ``shape`` slowest dimension first (as torch has it), ``offset`` from the start of the file."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    nbytes: int


class GGUFArray(Sequence[Any]):
    """An array of the metadata, decoded as a whole when an element is first asked for.

    Elements are str, bool, int or float, as the file says. It owns a copy of its bytes, not the file. Raises
    CheckpointError on reading text that is not UTF-8.
    """

    __slots__ = ("_count", "_file", "_key", "_kind", "_raw", "_values")

    def __init__(self, raw: bytes, kind: int, count: int, file: Path, key: str) -> None:
        self._raw = raw
        self._kind = kind
        self._count = count
        self._file = file
        self._key = key
        self._values: Sequence[Any] | None = None

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._decoded())

    def __repr__(self) -> str:
        return f"GGUFArray({self._key!r}, {self._count} elements)"

    def _decoded(self) -> Sequence[Any]:
        if self._values is None:
            self._values = self._decode_strings() if self._kind == STRING else self._decode_scalars()
            self._raw = b""
        return self._values

    def _decode_scalars(self) -> Sequence[Any]:
        return struct.unpack(f"<{self._count}{SCALAR_FORMATS[self._kind]}", self._raw)

    def _decode_strings(self) -> list[str]:
        raw, read_length, start = self._raw, U64.unpack_from, 8
        texts: list[str] = []
        try:
            for _ in range(self._count):
                end = start + read_length(raw, start - 8)[0]
                texts.append(str(raw[start:end], "utf-8"))
                start = end + 8
        except UnicodeDecodeError as error:
            problem = f"element {len(texts)} of {self._key!r} is not UTF-8"
            raise CheckpointError(self._file, problem) from error
        return texts


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """The checked header of one GGUF file; every tensor's range lies inside the file.

    ``metadata`` values are str, bool, int, float or GGUFArray.
    """

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GGUFTensor]

    @classmethod
    def open(cls, path: Path) -> GGUFFile:
        """Read a file's header; CheckpointError or UnsupportedError name the file and the key or tensor at fault."""
        try:
            with path.open("rb") as file:
                if file.seek(0, 2) < 24:
                    raise CheckpointError(path, "shorter than a GGUF header: it is truncated or no GGUF file")
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                    return _Reader(path, data).read()
        except OSError as error:
            raise CheckpointError(path, f"cannot be read: {error.strerror}") from error

    def read(self, tensor: GGUFTensor) -> bytes:
        """Return a copy of a tensor's stored bytes (for small ones; the loader maps the file)."""
        with self.path.open("rb") as file:
            file.seek(tensor.offset)
            return file.read(tensor.nbytes)


class _Reader:
    """A position in the mapped file. Every step forward is checked against the file's size first."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._position = 0

    def read(self) -> GGUFFile:
        version = self._read_version()
        num_tensors = self._scalar(U64, "the number of tensors")
        num_pairs = self._scalar(U64, "the number of metadata entries")
        self._check_room(num_pairs * MIN_PAIR_BYTES, f"{num_pairs} metadata entries")
        metadata = self._read_metadata(num_pairs)
        self._check_room(num_tensors * MIN_TENSOR_INFO_BYTES, f"{num_tensors} tensor infos")
        infos = [self._read_tensor_info() for _ in range(num_tensors)]
        alignment = self._alignment(metadata)
        data_start = -(-self._position // alignment) * alignment
        return GGUFFile(self._path, version, metadata, self._place(infos, data_start, alignment))

    def _read_version(self) -> int:
        if self._data[:4] != MAGIC:
            raise CheckpointError(self._path, "does not begin with the GGUF magic")
        self._position = 4
        version: int = self._scalar(U32, "the version")
        if version & 0xFFFF == 0:
            raise UnsupportedError(f"{self._path}: a big-endian GGUF file; convert it to little-endian")
        if version not in VERSIONS:
            raise UnsupportedError(f"{self._path}: GGUF version {version}; versions 2 and 3 are read")
        return version

    def _read_metadata(self, num_pairs: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(num_pairs):
            key = self._string("a metadata key")
            if key in metadata:
                raise CheckpointError(self._path, f"metadata key {key!r} occurs twice")
            metadata[key] = self._read_value(key)
        return metadata

    def _read_value(self, key: str) -> Any:
        kind = self._scalar(U32, f"the type of {key!r}")
        if kind == STRING:
            return self._string(repr(key))
        if kind == ARRAY:
            return self._read_array(key)
        if kind in SCALARS:
            return self._scalar(SCALARS[kind], repr(key))
        raise CheckpointError(self._path, f"metadata key {key!r} has unknown value type {kind}")

    def _read_array(self, key: str) -> GGUFArray:
        kind = self._scalar(U32, f"the element type of {key!r}")
        count = self._scalar(U64, f"the length of {key!r}")
        start = self._position
        if kind == STRING:
            self._skip_strings(key, count)
        elif kind in SCALARS:
            self._take(count * SCALARS[kind].size, f"{count} elements of {key!r}")
        else:
            what = "arrays in arrays are not read" if kind == ARRAY else f"unknown element type {kind}"
            raise CheckpointError(self._path, f"metadata key {key!r}: {what}")
        return GGUFArray(self._data[start : self._position], kind, count, self._path, key)

    def _skip_strings(self, key: str, count: int) -> None:
        """Step over strings. One tight loop: a vocabulary has hundreds of thousands of them."""
        self._check_room(count * U64.size, f"{count} strings of {key!r}")
        data, position, read_length = self._data, self._position, U64.unpack_from
        try:
            for _ in range(count):
                position += 8 + read_length(data, position)[0]
        except (struct.error, IndexError, OverflowError) as error:
            raise CheckpointError(self._path, f"a string of {key!r} ends past the end of the file") from error
        self._take(position - self._position, f"the strings of {key!r}")

    def _read_tensor_info(self) -> tuple[str, tuple[int, ...], TensorType, int]:
        name = self._string("a tensor name")
        what = f"the info of tensor {name!r}"
        num_dimensions = self._scalar(U32, what)
        if not 1 <= num_dimensions <= MAX_DIMENSIONS:
            raise CheckpointError(self._path, f"{num_dimensions} dimensions; 1 to {MAX_DIMENSIONS} exist", tensor=name)
        shape = tuple(self._scalar(U64, what) for _ in range(num_dimensions))[::-1]
        kind = self._scalar(U32, what)
        if kind not in TENSOR_TYPES:
            known = ", ".join(known.name for known in TENSOR_TYPES.values())
            raise UnsupportedError(f"{self._path}, tensor {name!r}: unknown GGUF tensor type {kind}; known: {known}")
        return name, shape, TENSOR_TYPES[kind], self._scalar(U64, what)

    def _alignment(self, metadata: Mapping[str, Any]) -> int:
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
            raise CheckpointError(self._path, f"general.alignment is {alignment!r}; it must be a power of two")
        return alignment

    def _place(
        self, infos: list[tuple[str, tuple[int, ...], TensorType, int]], data_start: int, alignment: int
    ) -> dict[str, GGUFTensor]:
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, kind, offset in infos:
            if name in tensors:
                raise CheckpointError(self._path, "occurs twice", tensor=name)
            if offset % alignment:
                raise CheckpointError(self._path, f"offset {offset} is not a multiple of {alignment}", tensor=name)
            nbytes = self._stored_bytes(name, shape, kind)
            end = data_start + offset + nbytes
            if end > self._size:
                problem = f"ends at byte {end} of a file of {self._size} bytes: the file is truncated"
                raise CheckpointError(self._path, problem, tensor=name)
            tensors[name] = GGUFTensor(name, shape, kind.name, data_start + offset, nbytes)
        self._check_overlap(tensors)
        return tensors

    def _stored_bytes(self, name: str, shape: tuple[int, ...], kind: TensorType) -> int:
        if min(shape) < 1 or math.prod(shape) >= 2**63:
            raise CheckpointError(self._path, f"impossible shape {shape}", tensor=name)
        if shape[-1] % kind.block_size:
            problem = f"rows of {shape[-1]} are not whole {kind.name} blocks of {kind.block_size}"
            raise CheckpointError(self._path, problem, tensor=name)
        return math.prod(shape) // kind.block_size * kind.block_bytes

    def _check_overlap(self, tensors: Mapping[str, GGUFTensor]) -> None:
        end = 0
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
            if tensor.offset < end:
                raise CheckpointError(self._path, "its data overlaps another tensor's", tensor=tensor.name)
            end = tensor.offset + tensor.nbytes

    def _scalar(self, form: struct.Struct, what: str) -> Any:
        start = self._take(form.size, what)
        value: Any = form.unpack_from(self._data, start)[0]
        return value

    def _string(self, what: str) -> str:
        length = self._scalar(U64, f"the length of {what}")
        start = self._take(length, what)
        try:
            return str(self._data[start : start + length], "utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(self._path, f"{what} is not UTF-8") from error

    def _take(self, nbytes: int, what: str) -> int:
        """Move forward by ``nbytes``; return where they begin."""
        self._check_room(nbytes, what)
        start = self._position
        self._position += nbytes
        return start

    def _check_room(self, nbytes: int, what: str) -> None:
        if nbytes > self._size - self._position:
            problem = f"{what} needs {nbytes} bytes at byte {self._position} of a file of {self._size}"
            raise CheckpointError(self._path, f"{problem}: the file is truncated or its header is wrong")
