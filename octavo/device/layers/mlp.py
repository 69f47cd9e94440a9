"""The gated feed-forward layer."""

from __future__ import annotations

from torch import Tensor, nn

from octavo.device.layers.linear import Linear
from octavo.device.ops.gate_up_activation import ACTIVATIONS
from octavo.device.ops.kernels import Kernels
from octavo.words.errors import UnsupportedError


class GatedMLP(nn.Module):
    """down(activation(gate(x)) * up(x)); ``activation`` is a name of ops/gate_up_activation."""

    def __init__(self, gate_up: Linear, down: Linear, *, activation: str, kernels: Kernels) -> None:
        super().__init__()
        if activation not in ACTIVATIONS:
            raise UnsupportedError(f"activation {activation!r} is not one of {', '.join(ACTIVATIONS)}")
        self.kernels = kernels
        self.activation = activation
        self.gate_up = gate_up
        self.down = down

    def forward(self, x: Tensor) -> Tensor:
        """x: [T, hidden_size], or what a norm made for ``gate_up`` -> [T, hidden_size]."""
        gate_up, down = self.gate_up.operand, self.down.operand
        return self.down(self.kernels.gate_up_activation(x, gate_up, self.activation, down))
