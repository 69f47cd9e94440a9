"""The linear layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.ops.kernels import Kernels
from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.quantized import StoredRows


class Linear(nn.Module):
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
        super().__init__()
        self.kernels = kernels
        self.in_features = in_features
        self.out_features = out_features
        self.gated = gated
        self.method = method
        method.create_weights(self, in_features, out_features, bias=bias, dtype=dtype)

    @property
    def operand(self) -> LinearWeight:
        """The weights as the fused ops take them."""
        return self.method.operand(self)

    def load_rows(self, stack: Sequence[StoredRows]) -> None:
        """To be called in place of filling a weight that has no memory."""
        self.method.load_rows(self, stack)

    def finish_loading(self) -> None:
        """To be called when the parameters are filled."""
        self.method.finish(self)

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, in_features] -> [T, out_features]."""
        return self.kernels.linear(x, self.operand)
