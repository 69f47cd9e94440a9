"""Weights from safetensors files, mapped into memory; no pickle, and no copy but the one into the parameter."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from octavo.checkpoint.safetensors_header import SafetensorsFile, SafetensorsTensor, read_safetensors_folder
from octavo.device.loader.source import Move, StoredTensor, map_file
from octavo.device.ops.native.quantized import StoredRows, float_rows

TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


class SafetensorsSource:
    """All safetensors files of a model folder. Files stay mapped until ``close``."""

    gguf = False

    def __init__(self, folder: Path) -> None:
        files = read_safetensors_folder(folder)
        self._headers = {name: header for file in files for name, header in file.tensors.items()}
        self._tensors = {tensor.name: tensor for file in files for tensor in _stored(file)}
        self._maps: dict[Path, mmap.mmap] = {}

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self._tensors

    def can_read(self, tensor: StoredTensor) -> bool:
        return tensor.type in TORCH_DTYPES

    def copy(self, moves: Sequence[Move]) -> None:
        for move in moves:
            header = self._headers[move.stored.name]
            if header.nbytes:
                move.target.copy_(self._view(move.stored.file, header).view(header.shape))

    def rows(self, move: Move) -> StoredRows:
        stored = move.stored
        header = self._headers[stored.name]
        if stored.type == "F64":
            return float_rows(self._view(stored.file, header).view(header.shape).float())
        data = np.frombuffer(self._map(stored.file), dtype=np.uint8, offset=header.offset, count=header.nbytes)
        return StoredRows(stored.type, data.reshape(header.shape[0], -1))

    def close(self) -> None:
        self._maps.clear()

    def _view(self, path: Path, header: SafetensorsTensor) -> Tensor:
        raw = torch.frombuffer(self._map(path), dtype=torch.uint8, offset=header.offset, count=header.nbytes)
        dtype = TORCH_DTYPES[header.dtype]
        # The format does not promise alignment.
        return (raw.clone() if header.offset % dtype.itemsize else raw).view(dtype)

    def _map(self, path: Path) -> mmap.mmap:
        if path not in self._maps:
            self._maps[path] = map_file(path)
        return self._maps[path]


def _stored(file: SafetensorsFile) -> list[StoredTensor]:
    return [
        StoredTensor(tensor.name, file.path, tensor.shape, tensor.nbytes, tensor.dtype)
        for tensor in file.tensors.values()
    ]
