"""Weights of a few bits for the native kernels, packed straight from the mapped file."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.linear import PackedWeight, pack_dense
from octavo.device.ops.native.quantized import NATIVE_FORMATS, StoredRows, pack_quantized

FLOAT_TYPES = frozenset({"F32", "F16", "BF16"})
OTHERS_AS = "Q8_0"
"""What block types without kernels are quantised to: eight bits in groups of 32 lose little of fewer bits."""


class NativeQuantized:
    """``weight`` has a shape and no memory while it is loaded; then ``packed``.

    ``format`` is what every weight is quantised to, None: GGUF's block types stay as they are.
    """

    def __init__(self, native: NativeContext, name: str, format: str | None = None) -> None:
        self.name = name
        self._native = native
        self._format = format

    def create_weights(
        self, layer: nn.Module, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype
    ) -> None:
        weight = torch.empty(out_features, in_features, dtype=dtype, device="meta")
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False) if bias else None

    def load_rows(self, layer: nn.Module, stack: Sequence[StoredRows]) -> None:
        layer.stored = tuple(stack)

    def finish(self, layer: nn.Module) -> None:
        stack, dtype = layer.stored, layer.weight.dtype
        if self._format is None and all(rows.type in FLOAT_TYPES for rows in stack):
            layer.packed = pack_dense(self._native, self._dense(layer), layer.bias)
        else:
            formats = [(self._format or native_format(rows.type), rows) for rows in stack]
            layer.packed = pack_quantized(self._native, formats, layer.weight.shape[1], layer.bias, dtype)
        del layer.stored
        layer.weight = layer.bias = None

    def operand(self, layer: nn.Module) -> PackedWeight:
        return layer.packed

    def _dense(self, layer: nn.Module) -> torch.Tensor:
        dense = torch.empty(layer.weight.shape, dtype=layer.weight.dtype)
        for rows, part in zip(layer.stored, dense.split([len(rows.data) for rows in layer.stored]), strict=True):
            data = rows.data if rows.order is None else rows.data[rows.order]
            self._native.library.dequantize(rows.type, np.ascontiguousarray(data), part)
        return dense


def native_format(stored_type: str) -> str:
    """The format that a stored type is computed in, where it need not be dense."""
    return stored_type if stored_type in NATIVE_FORMATS else OTHERS_AS
