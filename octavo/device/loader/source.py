"""What the loader asks of a kind of weight file."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from octavo.device.ops.native.quantized import StoredRows


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: ``shape`` as torch has it, ``nbytes`` as stored. No data."""

    name: str
    file: Path
    shape: tuple[int, ...]
    nbytes: int
    type: str


@dataclass(frozen=True, slots=True)
class Move:
    """One copy: a stored tensor into a view of a parameter, of the same shape and any float dtype.

    ``start`` is the parameter's first row that is meant; ``interleaved_heads`` is as in ``Placement``.
    """

    stored: StoredTensor
    target: Tensor
    start: int = 0
    interleaved_heads: int = 0


class WeightSource(Protocol):
    """All tensors of a checkpoint, copied on demand. Opening one has read and checked every header.

    ``gguf`` says that names are GGUF's, not Hugging Face's.
    """

    gguf: bool

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def can_read(self, tensor: StoredTensor) -> bool:
        """Say whether ``copy`` knows the tensor's storage type."""
        ...

    def copy(self, moves: Sequence[Move]) -> None:
        """Make all moves, converting as needed. In which order and by how many threads is the source's affair."""
        ...

    def rows(self, move: Move) -> StoredRows:
        """The stored bytes of a matrix in the order of the target's rows; valid until ``close``."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


def map_file(path: Path) -> mmap.mmap:
    """Map a file copy-on-write: torch wants a writable buffer, and nothing is ever written."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
