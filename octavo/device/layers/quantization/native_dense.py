"""Dense weights in the model's dtype, packed for the native kernels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from octavo.device.layers.linear import Linear
from octavo.device.layers.quantization.unquantized import UNQUANTIZED
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.linear import PackedWeight, pack_dense
from octavo.device.ops.native.quantized import StoredRows


class NativeDense:
    """Parameters of ``Unquantized`` while they are loaded; then ``packed``, and the parameters are dropped."""

    name = "none"

    def __init__(self, native: NativeContext) -> None:
        self._native = native

    def create_weights(
        self, layer: nn.Module, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype
    ) -> None:
        UNQUANTIZED.create_weights(layer, in_features, out_features, bias=bias, dtype=dtype)

    def load_rows(self, layer: nn.Module, stack: Sequence[StoredRows]) -> None:
        UNQUANTIZED.load_rows(layer, stack)

    def finish(self, layer: nn.Module) -> None:
        gated = isinstance(layer, Linear) and layer.gated
        layer.packed = pack_dense(self._native, layer.weight, layer.bias, gated=gated)
        layer.weight = layer.bias = None

    def operand(self, layer: nn.Module) -> PackedWeight:
        return layer.packed
