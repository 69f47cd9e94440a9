"""add_rms_norm: add to the residual stream and normalise the sum."""

from __future__ import annotations

from torch import Tensor

from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.rms_norm import rms_norm


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    weight_offset: float = 0.0,
    reader: LinearWeight | None = None,
) -> tuple[Tensor, Tensor]:
    """Return (rms_norm(s), s) for s = residual + x.

    x, residual: [T, width], x in the weight's dtype, residual in that or float32. The second result is the new residual
    stream, float32 always: rounded, a stream of large numbers would lose what each layer adds to it. The norm reads
    the sum as it is and is rounded to x's dtype; ``reader`` is as in ``rms_norm``.
    """
    total = residual.float() + x.float()
    return rms_norm(total, weight, eps, weight_offset).to(x.dtype), total
