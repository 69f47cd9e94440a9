"""add_layer_norm: layer normalisation of a sum."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def add_layer_norm(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return (s - mean(s)) / sqrt(var(s) + eps) * weight + bias with s = x + residual, per row (Ba et al., 2016).

    x, residual: [..., width]; weight, bias: [width]. All in float32, rounded once to x's dtype.
    """
    total = x.float() + residual.float()
    return F.layer_norm(total, weight.shape, weight.float(), bias.float(), eps).to(x.dtype)
