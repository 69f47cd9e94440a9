"""Linear layers: one matrix, or several of one input stacked into one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.ops.linear import LinearWeight, linear


class Linear(nn.Module):
    """A weight matrix [out_features, in_features] in the format of ``method``, with an optional bias."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype, method: QuantMethod
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.method = method
        method.create_weights(self, in_features, out_features, bias=bias, dtype=dtype)

    @property
    def operand(self) -> LinearWeight:
        """The weights as the fused ops take them."""
        return self.method.operand(self)

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, in_features] -> [T, out_features]."""
        return linear(x, self.operand)


class MergedLinear(Linear):
    """Several matrices of the same input as one, from the top down: query, key and value, or gate and up."""

    def __init__(
        self, in_features: int, parts: tuple[int, ...], *, bias: bool, dtype: torch.dtype, method: QuantMethod
    ) -> None:
        super().__init__(in_features, sum(parts), bias=bias, dtype=dtype, method=method)
        self.parts = parts
