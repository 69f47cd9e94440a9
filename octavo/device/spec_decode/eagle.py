"""Drafts by EAGLE's head, which goes on from the model's hidden states.

A position's feature and the token after it say the next feature, so the head is one token behind its model. It follows
every step, for what it keeps of a position cannot be computed later. Of the last position before a prefix that was
found in the cache it may have kept what goes with another next token: a guess may then be worse, and no answer is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.spec_decode.drafter import SaidTokens, Trials
from octavo.device.spec_decode.sampler import DraftSampler
from octavo.words.messages import NewRequestData

Ints = npt.NDArray[np.int64]


class FeatureSteps(Protocol):
    """Runs a head in the blocks of its model's requests."""

    is_ready: bool

    def run_on(
        self, features: Tensor, slots: Ints, starts: Ints, counts: Ints, token_ids: npt.NDArray[np.int32]
    ) -> Tensor:
        """Next features [sum, H] of ``counts`` positions of each request from ``starts`` on, with their tokens."""
        ...

    def logits(self, hidden: Tensor, rows: Ints) -> Tensor:
        """Logits of some rows of features, float32 [len(rows), V]."""
        ...


class EagleDrafter:
    """A drafter that runs ``steps``."""

    follows_steps = True
    looks_back = False

    def __init__(self, steps: FeatureSteps, sampler: DraftSampler) -> None:
        self._steps = steps
        self._sampler = sampler

    def add(self, slot: int, request: NewRequestData) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        if not self._steps.is_ready:
            return {}
        features = self._follow(said)
        wanted = said.wanted(num_drafts)
        rows = (said.is_sampled & (wanted > 0)).nonzero()[0]
        if not rows.size:
            return {}
        drafts = self._go_on(said, rows, wanted[rows], features)
        return said.by_request(rows, drafts, wanted[rows])

    def look_back(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> Trials:
        return {}

    def _follow(self, said: SaidTokens) -> Tensor:
        """The next feature after each position that the model computed, wrong drafts left out."""
        counts = said.num_kept
        rows = np.arange(counts.sum()) + (said.first_rows - counts.cumsum() + counts).repeat(counts)
        features = said.hidden_at(rows)
        return self._steps.run_on(features, said.slots, said.num_computed, counts, _following(said))

    def _go_on(self, said: SaidTokens, rows: Ints, wanted: Ints, features: Tensor) -> Ints:
        """Drafts [R, most wanted] from what ``_follow`` returned."""
        slots, known = said.slots[rows], said.num_tokens[rows]
        drafts = np.zeros((len(rows), int(wanted.max())), dtype=np.int64)
        going_on, newest = np.arange(len(rows)), said.num_kept.cumsum()[rows] - 1
        for number in range(drafts.shape[1]):
            if number:
                kept = wanted[going_on] > number
                going_on, features = going_on[kept], features[torch.from_numpy(newest[kept])]
                starts, ones = known[going_on] + number - 2, np.ones(len(going_on), dtype=np.int64)
                features = self._steps.run_on(features, slots[going_on], starts, ones, _following(said))
                newest = np.arange(len(going_on))
            logits = self._steps.logits(features, newest)
            guesses = self._sampler.choose(logits, slots[going_on], known[going_on], number, said.token_ids)
            drafts[going_on, number] = guesses
            said.token_ids[slots[going_on], known[going_on] + number] = guesses
        return drafts


def _following(said: SaidTokens) -> npt.NDArray[np.int32]:
    """By position the token that follows it; a view."""
    return said.token_ids[:, 1:]
