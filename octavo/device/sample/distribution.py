"""Drawing one token per row from a (filtered) distribution by an exponential race.

Token i of weight w_i finishes at time e_i / w_i, with an exponential number e_i of its own; the first one wins, which
token i is with probability w_i / sum(w). Unlike the inversion of a cumulative sum, a race hardly notices rounding: a
logit that another batch shape moves in its last bit changes the winner only if two finish within that bit. A filter
only takes runners out. Order of filters: min_p, top_k, top_p (each on what the one before left).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.sample.candidates import best_candidates
from octavo.device.sample.random_numbers import exponentials

NUCLEUS_WINDOW = 1024
"""Candidates looked at first for a top_p; a row whose mass is spread wider falls back on a full sort."""


@dataclass(frozen=True)
class Filters:
    """The filters of each row. top_k is 0 and top_p is 1 where there is none; min_p is 0 where there is none."""

    top_k: npt.NDArray[np.int64]
    top_p: npt.NDArray[np.float64]
    min_p: npt.NDArray[np.float64]

    @property
    def cut(self) -> npt.NDArray[np.bool_]:
        """Rows with a top_k or a top_p."""
        return (self.top_k > 0) | (self.top_p < 1.0)

    def rows(self, rows: npt.NDArray[np.int64]) -> Filters:
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows])


def draw(
    logits: Tensor, filters: Filters, keys: npt.NDArray[np.uint64], *, keep_logits: bool = False
) -> tuple[Tensor, Tensor | None]:
    """One token per row, and if asked the logits it was drawn from, with everything filtered out at -inf.

    logits: [R, V] float32 after temperature, overwritten. keys: [R], the rows' streams. Tokens are [R] int64.
    """
    mask_below_min_p(logits, filters.min_p)
    token_ids = torch.empty(len(keys), dtype=torch.int64)
    whole, cut = np.flatnonzero(~filters.cut), np.flatnonzero(filters.cut)
    if whole.size:
        rows = torch.from_numpy(whole)
        part = logits if not cut.size else logits[rows]
        token_ids[rows] = _race(part, np.arange(logits.shape[-1]), keys[whole])
    if cut.size:
        rows = torch.from_numpy(cut)
        token_ids[rows], kept = _draw_cut(logits[rows], filters.rows(cut), keys[cut], keep_logits)
        if kept is not None:
            logits[rows] = kept
    return token_ids, logits if keep_logits else None


def _race(logits: Tensor, ids: npt.NDArray[np.int64], keys: npt.NDArray[np.uint64]) -> Tensor:
    """The place of each row's winner. logits [R, K]; ids [K] or [R, K] name the runners. Returns [R] int64."""
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True)).numpy()
    with np.errstate(divide="ignore"):  # a weight of 0 never arrives
        arrivals = exponentials(keys, ids) / weights
    return torch.from_numpy(arrivals.argmin(axis=-1))


def mask_below_min_p(logits: Tensor, min_p: npt.NDArray[np.float64]) -> None:
    """Put every id whose probability is below min_p times the best one's at -inf, in place."""
    rows = np.flatnonzero(min_p > 0.0)
    if not rows.size:
        return
    floors = torch.from_numpy(np.log(min_p[rows])).to(logits.dtype)[:, None]
    index = torch.from_numpy(rows)
    part = logits[index]
    logits[index] = part.masked_fill(part < part.amax(dim=-1, keepdim=True) + floors, -torch.inf)


def _draw_cut(
    logits: Tensor, filters: Filters, keys: npt.NDArray[np.uint64], keep_logits: bool
) -> tuple[Tensor, Tensor | None]:
    """``draw`` for rows with a top_k or a top_p."""
    vocab_size = logits.shape[-1]
    token_ids = torch.empty(len(keys), dtype=torch.int64)
    kept_logits = torch.full_like(logits, -torch.inf) if keep_logits else None
    bounded = filters.top_k > 0
    top_k = np.where(bounded, np.minimum(filters.top_k, vocab_size), vocab_size)
    open_rows = np.arange(len(top_k))
    width = min(vocab_size, max(int(filters.top_k.max()), 1 if bounded.all() else NUCLEUS_WINDOW))
    while open_rows.size:
        rows = torch.from_numpy(open_rows)
        nucleus = _nucleus(
            logits[rows], torch.from_numpy(top_k[open_rows]), torch.from_numpy(filters.top_p[open_rows]), width
        )
        token_ids[rows] = nucleus.draw(keys[open_rows])
        if kept_logits is not None:
            kept_logits[rows] = nucleus.scatter_into(kept_logits[rows])
        open_rows = open_rows[~nucleus.is_complete.numpy()]
        width = vocab_size
    return token_ids, kept_logits


@dataclass(frozen=True)
class _Nucleus:
    """The best candidates of some rows: logits, ids and how many of them are kept."""

    values: Tensor
    ids: Tensor
    num_kept: Tensor
    is_complete: Tensor

    def draw(self, keys: npt.NDArray[np.uint64]) -> Tensor:
        place = _race(self._kept_values(), self.ids.numpy(), keys)
        return self.ids.gather(-1, place[:, None])[:, 0]

    def scatter_into(self, logits: Tensor) -> Tensor:
        return logits.scatter(-1, self.ids, self._kept_values())

    def _kept_values(self) -> Tensor:
        dropped = torch.arange(self.ids.shape[-1]) >= self.num_kept[:, None]
        return self.values.masked_fill(dropped, -torch.inf)


def _nucleus(logits: Tensor, top_k: Tensor, top_p: Tensor, width: int) -> _Nucleus:
    values, ids = best_candidates(logits, width)
    best = values[:, :1]
    values = values.masked_fill(torch.arange(width) >= top_k[:, None], -torch.inf)
    cumulative = _cumulative(values, best)
    # What top_p is a share of: the top_k's mass, or the whole row's (in id order: the width must not show).
    total = cumulative[:, -1].clone()
    unbounded = top_k >= logits.shape[-1]
    if unbounded.any():
        total[unbounded] = _cumulative(logits[unbounded], best[unbounded])[:, -1]
    needed = torch.where(top_p < 1.0, top_p * total, torch.inf)[:, None]
    before = torch.cat([torch.zeros_like(needed), cumulative[:, :-1]], dim=-1)
    num_kept = (before < needed).sum(dim=-1).clamp_(min=1)
    is_complete = (top_k <= width) | (cumulative[:, -1:] >= needed)[:, 0]
    return _Nucleus(values, ids, num_kept, is_complete)


def _cumulative(logits: Tensor, best: Tensor) -> Tensor:
    return torch.cumsum(torch.exp(logits - best), dim=-1, dtype=torch.float64)
