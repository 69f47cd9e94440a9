"""Logits that no token can be taken from."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def unusable_rows(logits: Tensor, what: str) -> dict[int, str]:
    """Rows that no token can be taken from, with the reason; their logits become zeros so that the rest can go on."""
    best = logits.amax(dim=-1)
    rows = torch.nonzero(~torch.isfinite(best))[:, 0].tolist()
    return clear_unusable(logits, [(row, float(best[row])) for row in rows], what)


def clear_unusable(logits: Tensor, found: Iterable[tuple[int, float]], what: str) -> dict[int, str]:
    """As ``unusable_rows`` of rows that were ``found``, each with its largest number (NaN where it holds one)."""
    failed = {}
    for row, best in found:
        problem = "hold NaN" if best != best else "hold +inf" if best > 0 else "are all -inf"
        failed[row] = f"{what} {problem}: no token can be chosen."
        logits[row] = 0.0
    return failed
