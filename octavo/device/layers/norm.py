"""Normalisation, alone or behind the addition to the residual stream."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.device.layers.linear import Linear
from octavo.device.ops.kernels import Kernels


class RMSNorm(nn.Module):
    """``weight_offset`` is 1 where the checkpoint stores the factor less one (Gemma), else 0."""

    def __init__(
        self, width: int, eps: float, *, dtype: torch.dtype, kernels: Kernels, weight_offset: float = 0.0
    ) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype), requires_grad=False)
        self.eps = eps
        self.weight_offset = weight_offset

    def forward(self, x: Tensor, reader: Linear | None = None) -> Tensor:
        """x: [..., width] -> the same, normalised; in the form that ``reader`` reads, if it is for that layer alone."""
        return self.kernels.rms_norm(x, self.weight, self.eps, self.weight_offset, reader and reader.operand)

    def add(self, x: Tensor, residual: Tensor, reader: Linear | None = None) -> tuple[Tensor, Tensor]:
        """Return the normalised sum, as ``forward``, and the sum in float32, which is the new residual stream."""
        operand = reader and reader.operand
        return self.kernels.add_rms_norm(x, residual, self.weight, self.eps, self.weight_offset, operand)


class LayerNorm(nn.Module):
    """Layer normalisation of a sum, as post-norm models have it."""

    def __init__(self, width: int, eps: float, *, dtype: torch.dtype, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(width, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """x, residual: [..., width] -> the normalised sum."""
        return self.kernels.add_layer_norm(x, residual, self.weight, self.bias, self.eps)
