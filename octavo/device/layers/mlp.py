"""The gated feed-forward layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.device.layers.linear import Linear, MergedLinear
from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.ops.gate_up_activation import ACTIVATIONS, gate_up_activation
from octavo.words.errors import UnsupportedError


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)); ``activation`` is a name of ops/gate_up_activation."""

    def __init__(
        self,
        hidden_size: int,
        intermediate_size: int,
        *,
        activation: str,
        bias: bool,
        dtype: torch.dtype,
        method: QuantMethod,
    ) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UnsupportedError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        self.activation = activation
        parts = (intermediate_size, intermediate_size)
        self.gate_up = MergedLinear(hidden_size, parts, bias=bias, dtype=dtype, method=method)
        self.down = Linear(intermediate_size, hidden_size, bias=bias, dtype=dtype, method=method)

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size] -> the same shape."""
        return self.down(gate_up_activation(x, self.gate_up.operand, self.activation))
