"""``thinking_token_budget``: thoughts that are longer than allowed are ended."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.sample.logits_processors import Followed, SamplingBatch
from octavo.words.messages import NewRequestData

TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True)
class _Budget:
    """One request's: after ``max_tokens`` tokens of thought, ``end_ids`` must come."""

    max_tokens: int
    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    num_prompt_tokens: int

    def forced(self, output: TokenIds) -> int | None:
        """The token that must follow this output; None where anything may."""
        start = _end_of_first(output, self.begin_ids)
        if start is None:
            return None
        thoughts = output[start:]
        if len(thoughts) < self.max_tokens or _end_of_first(thoughts, self.end_ids) is not None:
            return None
        # The end may have begun by itself just before the budget was spent.
        begun = _overlap(thoughts[: self.max_tokens], self.end_ids)
        num_said = len(thoughts) - self.max_tokens + begun
        # Thoughts go on behind their end only in drafts that are wrong: what follows those is for nobody.
        return self.end_ids[num_said] if num_said < len(self.end_ids) else None


class ThinkingBudget:
    """Once a request's thoughts are as long as they may be, nothing is left but the tokens that end them.

    What was said is read again at each step, so that drafts, preemption and replay need no books.
    """

    def __init__(self) -> None:
        self.num_forced = 0
        self._budgets: Followed[_Budget] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        thinking, budget = request.sampling.thinking, request.sampling.params.thinking_token_budget
        if thinking is not None and budget is not None:
            num_prompt_tokens = len(request.prompt_token_ids)
            self._budgets.add(slot, _Budget(budget, thinking.begin_ids, thinking.end_ids, num_prompt_tokens))

    def remove(self, slot: int) -> None:
        self._budgets.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        changed = False
        for row, budget in self._budgets.rows(batch):
            token_id = budget.forced(batch.tokens(row, budget.num_prompt_tokens))
            if token_id is not None:
                kept = logits[row, token_id].item()
                logits[row] = -torch.inf
                logits[row, token_id] = kept if math.isfinite(kept) else 0.0  # 0: what the request else leaves out
                self.num_forced += 1
                changed = True
        return changed


def _end_of_first(tokens: TokenIds, ids: Sequence[int]) -> int | None:
    """One past the first place where ``tokens`` hold ``ids``; 0 for no ids."""
    if not ids:
        return 0
    for start in np.flatnonzero(tokens[: len(tokens) - len(ids) + 1] == ids[0]) if len(tokens) >= len(ids) else ():
        if tokens[start : start + len(ids)].tolist() == list(ids):
            return int(start) + len(ids)
    return None


def _overlap(tokens: TokenIds, ids: Sequence[int]) -> int:
    """How many of the first ``ids`` (but not all of them) the tokens end with."""
    tail = tokens[max(0, len(tokens) - len(ids) + 1) :].tolist()
    return next((size for size in range(len(tail), 0, -1) if tail[-size:] == list(ids[:size])), 0)
