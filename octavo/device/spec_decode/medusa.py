"""Drafts by Medusa heads: all at once, from the hidden state that the newest token was said from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from octavo.device.models.medusa import MedusaHead
from octavo.device.spec_decode.drafter import SaidTokens, Trials
from octavo.device.spec_decode.sampler import DraftSampler
from octavo.words.messages import NewRequestData


class MedusaDrafter:
    """Head i guesses draft i: each says what it finds likeliest, whatever the others say."""

    follows_steps = False
    looks_back = False

    def __init__(self, heads: Sequence[MedusaHead], sampler: DraftSampler) -> None:
        self._heads = heads
        self._sampler = sampler

    def add(self, slot: int, request: NewRequestData) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        wanted = np.minimum(said.wanted(num_drafts), len(self._heads))
        rows = (said.is_sampled & (wanted > 0)).nonzero()[0]
        drafts: dict[str, list[int]] = {said.request_ids[row]: [] for row in rows.tolist()}
        for number, head in enumerate(self._heads):
            rows = rows[wanted[rows] > number]
            if not rows.size:
                break
            logits = head(said.hidden_at(said.first_rows[rows] + said.num_kept[rows] - 1))
            slots, known = said.slots[rows], said.num_tokens[rows]
            guesses = self._sampler.choose(logits, slots, known, number, said.token_ids)
            said.token_ids[slots, known + number] = guesses
            for row, guess in zip(rows.tolist(), guesses.tolist(), strict=True):
                drafts[said.request_ids[row]].append(guess)
        return drafts

    def look_back(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> Trials:
        return {}
