"""Dense weights in the model's dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.ops.linear import DenseWeight
from octavo.device.ops.native.quantized import StoredRows


class Unquantized:
    """``weight`` [out_features, in_features] and, if the layer has one, ``bias`` [out_features]."""

    name = "none"

    def create_weights(
        self, layer: nn.Module, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype
    ) -> None:
        layer.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype), requires_grad=False)
        layer.bias = nn.Parameter(torch.empty(out_features, dtype=dtype), requires_grad=False) if bias else None

    def load_rows(self, layer: nn.Module, stack: Sequence[StoredRows]) -> None:
        raise AssertionError("parameters with memory are filled in place")

    def finish(self, layer: nn.Module) -> None:
        """Nothing: the parameters are what is computed with."""

    def operand(self, layer: nn.Module) -> DenseWeight:
        return DenseWeight(layer.weight, layer.bias)


UNQUANTIZED: QuantMethod = Unquantized()
