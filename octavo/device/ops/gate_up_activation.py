"""gate_up_activation: the first half of a gated feed-forward layer."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

from octavo.device.ops.linear import LinearWeight, linear

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu_pytorch_tanh": lambda gate: F.gelu(gate, approximate="tanh"),
}


def gate_up_activation(x: Tensor, weight: LinearWeight, activation: str, reader: LinearWeight | None = None) -> Tensor:
    """Return activation(gate) * up of the projected rows (Shazeer, 2020).

    x: [T, hidden_size]; weight has the gate's rows, then as many of up's.
    activation: silu or gelu_pytorch_tanh, as Hugging Face configs name them.
    Returns [T, intermediate_size] in the activations' dtype, or for ``reader`` as ``rms_norm`` does. The projection is
    rounded as ``linear`` does; activation and product are float32, rounded once.
    """
    gate, up = linear(x, weight).chunk(2, dim=-1)
    return (ACTIVATIONS[activation](gate.float()) * up.float()).to(weight.dtype)
