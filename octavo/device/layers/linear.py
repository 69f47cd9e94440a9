"""The linear layer."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.layers.weight import Weight
from octavo.device.ops.kernels import Kernels


class Linear(Weight):
    """A weight matrix [out_features, in_features] in the format of ``method``, with an optional bias.

    Several matrices of the same input are one layer, stacked from the top down: query, key and value, or gate and up
    (which are ``gated``: one op takes both, and a format may lay them out for it).
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool,
        dtype: torch.dtype,
        method: QuantMethod,
        kernels: Kernels,
        gated: bool = False,
    ) -> None:
        super().__init__(method)
        self.kernels = kernels
        self.in_features = in_features
        self.out_features = out_features
        self.gated = gated
        method.create_weights(self, in_features, out_features, bias=bias, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, in_features], or what an op made for this layer as its reader -> [T, out_features]."""
        return self.kernels.linear(x, self.operand)
