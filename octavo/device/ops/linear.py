"""linear: rows times a weight matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch.nn.functional as F
from torch import Tensor


class LinearWeight(Protocol):
    """A weight matrix (and bias) in some format, as an operand of the ops; a format is a class with its arithmetic."""

    def project(self, x: Tensor) -> Tensor:
        """x: [T, in_features] -> [T, out_features] in x's dtype; sums in float32, rounded once after the bias."""
        ...


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """weight: [out_features, in_features], bias: [out_features] or None; both in the activations' dtype."""

    weight: Tensor
    bias: Tensor | None = None

    def project(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """Multiply each row by the weight matrix and add the bias, if there is one.

    x: [T, in_features] -> [T, out_features], same dtype. Sums are float32; the result is rounded once.
    """
    return weight.project(x)
