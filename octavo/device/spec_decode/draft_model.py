"""Drafts by a second, smaller model with the same vocabulary.

It goes on from the newest token, a step for each draft, and keeps keys and values of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.device.spec_decode.drafter import SaidTokens, Trials
from octavo.device.spec_decode.progress import Progress
from octavo.device.spec_decode.sampler import DraftSampler
from octavo.words.messages import NewRequestData

Ints = npt.NDArray[np.int64]


class DraftSteps(Protocol):
    """Runs a drafter's network in the blocks of its model's requests."""

    max_num_tokens: int
    is_ready: bool
    progress: Progress

    def add(self, slot: int, request: NewRequestData) -> None:
        """A request starts."""
        ...

    def run(self, slots: Ints, starts: Ints, counts: Ints, token_ids: npt.NDArray[np.int32]) -> Tensor:
        """Compute ``counts`` (at least 1) tokens of each request after ``starts`` others; hidden states [sum, H]."""
        ...

    def logits(self, hidden: Tensor, rows: Ints) -> Tensor:
        """Logits of some rows of what ``run`` returned, float32 [len(rows), V]."""
        ...


class DraftModel:
    """A drafter that runs ``steps``, and catches up with what was said since it last guessed for a request."""

    follows_steps = False
    looks_back = True

    def __init__(self, steps: DraftSteps, sampler: DraftSampler) -> None:
        self._steps = steps
        self._sampler = sampler

    def add(self, slot: int, request: NewRequestData) -> None:
        self._steps.add(slot, request)

    def remove(self, slot: int) -> None:
        pass

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        if not self._steps.is_ready:
            return {}
        self._steps.progress.note(said)
        wanted = said.wanted(num_drafts)
        rows = wanted.nonzero()[0]
        if not rows.size:
            return {}
        known = said.num_computed[rows] + said.num_kept[rows] + said.is_sampled[rows]
        guesses = self._catch_up(said, rows, known)
        going_on = said.is_sampled[rows]
        rows, wanted, known = rows[going_on], wanted[rows][going_on], known[going_on]
        drafts = self._go_on(said.slots[rows], known, wanted, guesses[going_on], said.token_ids)
        return said.by_request(rows, drafts, wanted)

    def look_back(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> Trials:
        if self._steps.is_ready:
            self._steps.progress.note(said)
        return {}

    def _catch_up(self, said: SaidTokens, rows: Ints, known: Ints) -> Ints:
        """Compute all known tokens of these requests, in as many steps as that takes; what may follow each, [R]."""
        slots, computed = said.slots[rows], self._steps.progress.computed
        guesses = np.zeros(len(rows), dtype=np.int64)
        while True:
            lacking = known - computed[slots]
            taken = lacking.cumsum() - lacking
            counts = np.clip(self._steps.max_num_tokens - taken, 0, lacking)
            some = counts.nonzero()[0]
            if not some.size:
                return guesses
            done = self._step(slots[some], counts[some], known[some], said.token_ids)
            ends = some[(counts[some] == lacking[some]) & said.is_sampled[rows[some]]]
            if ends.size:
                last_rows = counts[some].cumsum() - 1
                logits = self._steps.logits(done, last_rows[np.isin(some, ends)])
                guesses[ends] = self._sampler.choose(logits, slots[ends], known[ends], 0, said.token_ids)

    def _go_on(self, slots: Ints, known: Ints, wanted: Ints, guesses: Ints, token_ids: npt.NDArray[np.int32]) -> Ints:
        """Drafts [R, most wanted], of which the first column is known; each next one takes a step."""
        most = int(wanted.max(initial=1))
        drafts = np.zeros((len(slots), most), dtype=np.int64)
        drafts[:, 0] = guesses
        for number in range(1, most):
            rows = (wanted > number).nonzero()[0]
            token_ids[slots[rows], known[rows] + number - 1] = drafts[rows, number - 1]
            hidden = self._step(slots[rows], np.ones(len(rows), dtype=np.int64), known[rows], token_ids)
            logits = self._steps.logits(hidden, np.arange(len(rows)))
            drafts[rows, number] = self._sampler.choose(logits, slots[rows], known[rows], number, token_ids)
        return drafts

    def _step(self, slots: Ints, counts: Ints, known: Ints, token_ids: npt.NDArray[np.int32]) -> Tensor:
        progress = self._steps.progress
        starts = progress.computed[slots]
        hidden = self._steps.run(slots, starts, counts, token_ids)
        progress.advance(slots, starts + counts, known)
        return hidden
