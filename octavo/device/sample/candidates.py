"""The one order of candidates: logit downwards, then id upwards. Every choice among tokens is made in it."""

from __future__ import annotations

import torch
from torch import Tensor

SORT_FROM = 8
"""From a k of vocabulary / SORT_FROM on, one full sort is cheaper than a selection."""


def best_ids(logits: Tensor) -> Tensor:
    """The best candidate of each row; the lowest id where several are equal.

    logits: [R, V] float32 without NaN. Returns [R] int64.
    """
    # numpy's argmax is vectorised and first-wins; torch's takes 15 times as long on a CPU.
    return torch.from_numpy(logits.numpy().argmax(axis=-1))


def best_candidates(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best candidates of each row, in order; exactly k, so equal logits at the border go to the lower ids.

    logits: [R, V] float32 without NaN; k is cut to V. Returns values and ids (int64), each [R, k]. Ids at -inf are no
    candidates: they come last, in any order.
    """
    vocab_size = logits.shape[-1]
    if k * SORT_FROM >= vocab_size:
        values, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
        return values[:, :k], ids[:, :k]
    values, ids = torch.topk(logits, k, dim=-1)
    # topk breaks ties as it likes: take everything as good as the last one, then order it.
    last = values[:, -1:].clamp(min=torch.finfo(logits.dtype).min)
    num_as_good = int((logits >= last).sum(dim=-1).max())
    if num_as_good > k:
        values, ids = torch.topk(logits, num_as_good, dim=-1)
    ids, by_id = torch.sort(ids, dim=-1)
    values, by_value = torch.sort(values.gather(-1, by_id), dim=-1, descending=True, stable=True)
    return values[:, :k], ids.gather(-1, by_value)[:, :k]


def ranks(logits: Tensor, ids: Tensor) -> Tensor:
    """Place of one token per row in the order, 1 = best. logits [R, V], ids [R]; returns [R] int64."""
    value = logits.gather(-1, ids[:, None])
    lower_id = torch.arange(logits.shape[-1], device=logits.device) < ids[:, None]
    ahead = (logits > value) | ((logits == value) & lower_id)
    return ahead.sum(dim=-1) + 1
