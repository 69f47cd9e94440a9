"""lm_head_best: the best token of each row, from logits that nobody keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.lm_head import lm_head


def lm_head_best(hidden: Tensor, weight: LinearWeight, softcap: float | None = None) -> Tensor:
    """The largest of each row's logits, and the lowest id that has it.

    Arguments are those of ``lm_head``. Returns float64 [R, 2], which holds either exactly: the logit, NaN where any of
    the row is, and the id, which is any number where the logit is NaN.
    """
    logits = lm_head(hidden, weight, softcap)
    best, size = logits.amax(dim=-1, keepdim=True), logits.shape[1]
    ids = torch.where(logits == best, torch.arange(size), size).amin(dim=-1, keepdim=True)
    return torch.cat((best.double(), ids.double()), dim=1)
