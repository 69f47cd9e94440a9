"""Logits that no token can be taken from."""

from __future__ import annotations

import torch
from torch import Tensor


def unusable_rows(logits: Tensor, what: str) -> dict[int, str]:
    """Rows that no token can be taken from, with the reason; their logits become zeros so that the rest can go on."""
    return clear_unusable(logits, logits.amax(dim=-1), what)


def clear_unusable(logits: Tensor, best: Tensor, what: str) -> dict[int, str]:
    """As ``unusable_rows``, with the largest number of each row known: ``best`` [R], NaN where a row holds one."""
    if bool(torch.isfinite(best).all()):
        return {}
    failed = {}
    for row in torch.nonzero(~torch.isfinite(best))[:, 0].tolist():
        value = float(best[row])
        problem = "hold NaN" if value != value else "hold +inf" if value > 0 else "are all -inf"
        failed[row] = f"{what} {problem}: no token can be chosen."
        logits[row] = 0.0
    return failed
