"""rms_norm: root-mean-square normalisation of the last axis."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from octavo.device.ops.linear import LinearWeight


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0, reader: LinearWeight | None = None
) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) * (weight_offset + weight), per row (Zhang and Sennrich, 2019).

    x: [..., width], weight: [width]. The mean, the factor and the products are float32, rounded once to x's dtype.

    reader: the one weight that the result is for, [T, width]; a kernel may return rows in the form that weight reads,
    which multiplied by it give the same bits as the rows themselves.
    """
    factor = weight.float()
    if weight_offset:
        factor = factor + weight_offset
    return F.rms_norm(x.float(), factor.shape, factor, eps).to(x.dtype)
