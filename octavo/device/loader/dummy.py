"""Seeded random weights, for tests and benchmarks of models whose files one does not have."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

SPREAD = 0.02


def fill_dummy(parameters: Mapping[str, Tensor], *, seed: int) -> tuple[int, int]:
    """Fill parameters by name, in place, with ``dummy_values``; returns their number and bytes."""
    for name, parameter in parameters.items():
        parameter.copy_(dummy_values(name, parameter.shape, seed=seed))
    return len(parameters), sum(parameter.nbytes for parameter in parameters.values())


def dummy_values(name: str, shape: Sequence[int], *, seed: int) -> Tensor:
    """Normal numbers for a matrix, numbers near 1 for a vector (norms, biases): float32.

    They depend on seed, name and shape only, not on other parameters.
    """
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(_seed_of(name, seed))).mul_(SPREAD)
    return values if len(shape) > 1 else values.add_(1.0)


def _seed_of(name: str, seed: int) -> int:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
