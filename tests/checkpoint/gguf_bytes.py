"""Writes GGUF bytes field by field, so that any one of them can be made to lie."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
FORMATS = {U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: int, value: Any) -> bytes:
    return text(value) if kind == STRING else struct.pack(FORMATS[kind], value)


def pair(key: str, kind: int, value: Any) -> bytes:
    return text(key) + struct.pack("<I", kind) + scalar(kind, value)


def array(key: str, kind: int, values: list[Any], count: int | None = None) -> bytes:
    head = struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count)
    return text(key) + head + b"".join(scalar(kind, value) for value in values)


def pairs(values: dict[str, Any]) -> list[bytes]:
    """Metadata from Python values: bool, int, float, str, and lists of one kind."""

    def kind_of(value: Any) -> int:
        return {bool: BOOL, int: U32, float: F32, str: STRING}[type(value)]

    return [
        array(key, kind_of(value[0]), value) if isinstance(value, list) else pair(key, kind_of(value), value)
        for key, value in values.items()
    ]


@dataclass
class Info:
    """One tensor info; ``dims`` from the fastest dimension, ``data`` what is written for it."""

    name: str
    dims: tuple[int, ...]
    data: bytes
    kind: int = 0
    offset: int | None = None


@dataclass
class GGUFBytes:
    """A file to be; fields that are None are made right."""

    metadata: list[bytes] = field(default_factory=list)
    tensors: list[Info] = field(default_factory=list)
    version: int = 3
    magic: bytes = b"GGUF"
    num_pairs: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_pairs = len(self.metadata) if self.num_pairs is None else self.num_pairs
        header = self.magic + struct.pack("<IQQ", self.version, num_tensors, num_pairs) + b"".join(self.metadata)
        data = b""
        for info in self.tensors:
            offset = len(data) if info.offset is None else info.offset
            header += text(info.name) + struct.pack("<I", len(info.dims))
            header += b"".join(struct.pack("<Q", size) for size in info.dims) + struct.pack("<IQ", info.kind, offset)
            data += self._padded(info.data)
        return self._padded(header) + data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.build())
        return path

    def _padded(self, data: bytes) -> bytes:
        return data + b"\0" * (-len(data) % self.alignment)
