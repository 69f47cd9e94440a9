"""Weights from a GGUF file, mapped into memory and dequantised into the parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.checkpoint.gguf_header import GGUFFile
from octavo.device.loader.gguf_dequant import DEQUANTIZE, Bytes, dequantize_rows
from octavo.device.loader.source import StoredTensor, map_file

INLINE_ELEMENTS = 2**17  # below this a second thread costs more than it brings


class GGUFSource:
    """The tensors of one GGUF file, which stays mapped until ``close``. Rows are shared among ``num_threads``."""

    gguf = True

    def __init__(self, path: Path, *, num_threads: int = 1) -> None:
        self._file = GGUFFile.open(path)
        self._bytes: Bytes = np.frombuffer(map_file(path), dtype=np.uint8)
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="octavo-load")
        self._tensors = {
            tensor.name: StoredTensor(tensor.name, path, tensor.shape, tensor.nbytes, tensor.type)
            for tensor in self._file.tensors.values()
        }

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self._tensors

    def can_read(self, tensor: StoredTensor) -> bool:
        return tensor.type in DEQUANTIZE

    def copy(self, tensor: StoredTensor, target: Tensor, *, interleaved_heads: int = 0) -> None:
        rows, columns = self._rows(tensor), tensor.shape[-1]
        if not interleaved_heads:
            self._dequantize(tensor.type, rows, target.view(-1, columns))
        elif target.dim() == 1:
            values = torch.empty(1, columns)
            dequantize_rows(tensor.type, rows, values)
            target.copy_(values[0, torch.from_numpy(half_split_order(interleaved_heads, columns))])
        else:
            # Whole rows move, so it is the stored ones that are put in order: they are the smaller.
            self._dequantize(tensor.type, rows[half_split_order(interleaved_heads, len(rows))], target)

    def close(self) -> None:
        self._pool.shutdown()
        self._bytes = np.empty(0, dtype=np.uint8)

    def _rows(self, tensor: StoredTensor) -> Bytes:
        """The stored bytes, [num_rows, row bytes]: a view of the mapped file. A vector is one row."""
        offset = self._file.tensors[tensor.name].offset
        return self._bytes[offset : offset + tensor.nbytes].reshape(math.prod(tensor.shape[:-1]), -1)

    def _dequantize(self, type_name: str, rows: Bytes, target: Tensor) -> None:
        if target.numel() < INLINE_ELEMENTS:
            return dequantize_rows(type_name, rows, target)
        size = -(-len(rows) // self._num_threads)
        parts = [slice(start, start + size) for start in range(0, len(rows), size)]
        list(self._pool.map(lambda part: dequantize_rows(type_name, rows[part], target[part]), parts))


def half_split_order(num_heads: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Return which stored row comes where when neighbouring rotary pairs become two halves: [num_rows].

    A head's stored rows are (first 0, second 0, first 1, second 1, ...); models want all firsts, then all seconds.
    """
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).ravel()
