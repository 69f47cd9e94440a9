"""linear_activation: the first half of a feed-forward layer without a gate."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from octavo.device.ops.linear import LinearWeight, linear

ACTIVATIONS = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "tanh": lambda x: x.tanh(),
}
"""By the name that checkpoints give them."""


def linear_activation(x: Tensor, weight: LinearWeight, activation: str) -> Tensor:
    """Return activation(x projected); x: [T, in_features] -> [T, out_features]. The activation is float32 inside."""
    return ACTIVATIONS[activation](linear(x, weight).float()).to(x.dtype)
