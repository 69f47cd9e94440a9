"""What the loader asks of a kind of weight file."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file: ``shape`` as torch has it, ``nbytes`` as stored. No data."""

    name: str
    file: Path
    shape: tuple[int, ...]
    nbytes: int
    type: str


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

    def copy(self, tensor: StoredTensor, target: Tensor, *, interleaved_heads: int = 0) -> None:
        """Write the tensor into ``target``, of the same shape and any float dtype, converting as needed.

        ``interleaved_heads`` is as in ``Placement``.
        """
        ...

    def close(self) -> None:
        """Let go of files and threads."""
        ...


def map_file(path: Path) -> mmap.mmap:
    """Map a file copy-on-write: torch wants a writable buffer, and nothing is ever written."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
