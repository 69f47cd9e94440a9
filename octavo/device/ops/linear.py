"""linear: rows times a weight matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

_ROWS_PER_TILE = 4096


class LinearWeight(Protocol):
    """A weight matrix (and bias) in some format, as an operand of the ops; a format is a class with its arithmetic."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the activations."""
        ...

    def project(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """x: [T, in_features] -> [T, out_features], sums in float32, rounded once after the bias.

        ``dtype`` of the result is that of the activations, or float32. x may be what an op made for this weight as its
        ``reader``: rows in a form of the format's own.
        """
        ...

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [T] int64 -> those rows of the matrix, [T, in_features] in the activations' dtype."""
        ...


@dataclass(frozen=True, slots=True)
class DenseWeight:
    """weight: [out_features, in_features], bias: [out_features] or None; both in the activations' dtype."""

    weight: Tensor
    bias: Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype

    def project(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        if dtype in (None, x.dtype):
            return F.linear(x, self.weight, self.bias)
        wide = x.float()
        tiles = [F.linear(wide, tile.float()) for tile in self.weight.split(_ROWS_PER_TILE)]
        out = torch.cat(tiles, dim=-1)
        return out if self.bias is None else out + self.bias.float()

    def rows(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)


def linear(x: Tensor, weight: LinearWeight) -> Tensor:
    """Multiply each row by the weight matrix and add the bias, if there is one.

    x: [T, in_features] -> [T, out_features], same dtype. Sums are float32; the result is rounded once.
    """
    return weight.project(x)
