"""The Hadamard transform of heads, which spreads an entry far from the others over all of them."""

from __future__ import annotations

import torch
from torch import Tensor


def hadamard_size(head_size: int) -> int:
    """Entries that are transformed together: the largest power of two that divides the head size."""
    return head_size & -head_size


def hadamard(heads: Tensor) -> Tensor:
    """Each run of ``hadamard_size`` entries [..., head_size] times Sylvester's matrix; twice is that many times.

    Sums and differences alone, in one order, so that every backend has the same bits.
    """
    stride = 1
    while stride < hadamard_size(heads.shape[-1]):
        first, second = heads.unflatten(-1, (-1, 2, stride)).unbind(-2)
        heads = torch.stack((first + second, first - second), dim=-2).flatten(-3)
        stride *= 2
    return heads
