"""From an adapter's files to what its layers' slots take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from octavo.checkpoint.adapter import AdapterHeader, Shapes, adapter_hash, read_adapter
from octavo.checkpoint.safetensors_header import SafetensorsTensor
from octavo.device.loader.safetensors import TORCH_DTYPES
from octavo.device.lora.attach import AdaptedLayer
from octavo.device.ops.lora import LowRank, PackedUpdate
from octavo.words.errors import CheckpointError
from octavo.words.lora import Adapter


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter in memory: for each layer, in their order, its packed updates."""

    updates: Sequence[Sequence[PackedUpdate | None]]

    @property
    def nbytes(self) -> int:
        """Memory it holds."""
        return sum(update.nbytes for layer in self.updates for update in layer if update is not None)


class AdapterLoader:
    """Reads adapters for these layers. Safe in any thread."""

    def __init__(self, layers: Sequence[AdaptedLayer], shapes: Shapes, max_rank: int) -> None:
        self._layers = layers
        self._shapes = shapes
        self._max_rank = max_rank

    def __call__(self, adapter: Adapter) -> LoadedAdapter:
        """Read and pack an adapter. Raises CheckpointError where its files are broken, or no longer those meant."""
        folder = Path(adapter.path)
        header = read_adapter(folder, self._shapes, self._max_rank)
        data = _read(header.file)
        if adapter_hash(folder) != adapter.content_hash:
            raise CheckpointError(header.file, "was changed since the request named the adapter; ask again")
        return LoadedAdapter([self._packed(layer, header, data) for layer in self._layers])

    def _packed(self, layer: AdaptedLayer, header: AdapterHeader, data: bytearray) -> list[PackedUpdate | None]:
        updates: Mapping[str, Any] = header.updates
        packed: list[PackedUpdate | None] = []
        for projection in layer.projections:
            found = updates.get(projection)
            if found is None:
                packed.append(None)
            else:
                a, b = (_matrix(data, tensor) for tensor in (found.a, found.b))
                packed.append(layer.slots.pack(LowRank(a, b, found.scale)))
        return packed


def _read(file: Path) -> bytearray:
    try:
        return bytearray(file.read_bytes())
    except OSError as error:
        raise CheckpointError(file, f"cannot be read: {error.strerror}") from error


def _matrix(data: bytearray, tensor: SafetensorsTensor) -> Tensor:
    raw = torch.frombuffer(data, dtype=torch.uint8, offset=tensor.offset, count=tensor.nbytes)
    # The format does not promise alignment.
    return raw.clone().view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)
