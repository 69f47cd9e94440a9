"""Weights from a GGUF file, mapped into memory and dequantised into the parameter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.checkpoint.gguf_header import GGUFFile
from octavo.device.loader.dequantize import dequantizer
from octavo.device.loader.gguf_dequant import DEQUANTIZE, Bytes
from octavo.device.loader.source import Move, StoredTensor, map_file
from octavo.device.ops.native.quantized import StoredRows

# What a thread takes at a time: large, for threads meet at the interpreter's lock between two pieces, and small enough
# that none is left with much when the others are done.
PIECE_ELEMENTS = 2**20


@dataclass(frozen=True, slots=True)
class Piece:
    """``target`` [num_rows, columns] is filled from those of the tensor's stored ``rows`` that ``chosen`` names."""

    type: str
    rows: Bytes
    chosen: slice | npt.NDArray[np.int64]
    target: Tensor

    def copy(self) -> None:
        dequantizer(self.target.dtype)(self.type, self.rows[self.chosen], self.target)


class GGUFSource:
    """The tensors of one GGUF file, which stays mapped until ``close``. ``num_threads`` share the work of ``copy``."""

    gguf = True

    def __init__(self, file: GGUFFile, *, num_threads: int = 1) -> None:
        self._file = file
        self._bytes: Bytes = np.frombuffer(map_file(file.path), dtype=np.uint8)
        self._num_threads = num_threads
        self._tensors = {
            tensor.name: StoredTensor(tensor.name, file.path, tensor.shape, tensor.nbytes, tensor.type)
            for tensor in self._file.tensors.values()
        }

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self._tensors

    def can_read(self, tensor: StoredTensor) -> bool:
        return tensor.type in DEQUANTIZE

    def copy(self, moves: Sequence[Move]) -> None:
        pieces = [piece for move in moves for piece in self._pieces(move)]
        with ThreadPoolExecutor(self._num_threads, thread_name_prefix="octavo-load") as pool:
            for _ in pool.map(Piece.copy, pieces):
                pass
        for move in moves:
            if move.interleaved_heads and move.target.dim() == 1:
                order = half_split_order(move.interleaved_heads, len(move.target))
                move.target.copy_(move.target[torch.from_numpy(order)])

    def rows(self, move: Move) -> StoredRows:
        rows = self._rows(move.stored)
        order = half_split_order(move.interleaved_heads, len(rows)) if move.interleaved_heads else None
        return StoredRows(move.stored.type, rows, order)

    def close(self) -> None:
        self._bytes = np.empty(0, dtype=np.uint8)

    def _pieces(self, move: Move) -> Iterator[Piece]:
        """Whole rows of a matrix move, so it is the stored ones that are put in order: they are the smaller."""
        rows = self._rows(move.stored)
        target = move.target.view(len(rows), -1)
        moves_rows = move.interleaved_heads and move.target.dim() > 1
        order = half_split_order(move.interleaved_heads, len(rows)) if moves_rows else None
        step = max(1, PIECE_ELEMENTS // target.shape[1])
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            yield Piece(move.stored.type, rows, part if order is None else order[part], target[part])

    def _rows(self, tensor: StoredTensor) -> Bytes:
        """The stored bytes, [num_rows, row bytes]: a view of the mapped file. A vector is one row."""
        offset = self._file.tensors[tensor.name].offset
        return self._bytes[offset : offset + tensor.nbytes].reshape(math.prod(tensor.shape[:-1]), -1)


def half_split_order(num_heads: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Return which stored row comes where when neighbouring rotary pairs become two halves: [num_rows].

    A head's stored rows are (first 0, second 0, first 1, second 1, ...); models want all firsts, then all seconds.
    """
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).ravel()
