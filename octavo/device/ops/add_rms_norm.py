"""add_rms_norm: add to the residual stream and normalise the sum."""

from __future__ import annotations

from torch import Tensor

from octavo.device.ops.rms_norm import rms_norm


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(s), s) for s = residual + x.

    x, residual: [T, width], one dtype; the second result is the new residual stream. The sum is rounded to that dtype
    and the norm reads the rounded sum.
    """
    total = residual + x
    return rms_norm(total, weight, eps, weight_offset), total
