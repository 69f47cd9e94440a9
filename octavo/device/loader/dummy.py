"""Seeded random weights, for tests and benchmarks of models whose files one does not have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

SPREAD = 0.02


def fill_dummy(parameters: Mapping[str, Tensor], *, seed: int) -> tuple[int, int]:
    """Fill parameters by name, in place: matrices with normal numbers, vectors (norms, biases) with numbers near 1.

    Returns their number and bytes. The values of a parameter depend on seed, name and shape only, not on its dtype
    (but for rounding) nor on the other parameters.
    """
    for name, parameter in parameters.items():
        generator = torch.Generator().manual_seed(_seed_of(name, seed))
        values = torch.randn(parameter.shape, generator=generator).mul_(SPREAD)
        parameter.copy_(values if parameter.dim() > 1 else values.add_(1.0))
    return len(parameters), sum(parameter.nbytes for parameter in parameters.values())


def _seed_of(name: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
