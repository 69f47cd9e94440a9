"""Verification: which token stands where a draft was guessed.

By exact match, the default, it is the model's own sample, so answers are those without drafts. By rejection sampling
(Leviathan et al., "Fast inference from transformers via speculative decoding", 2023) a draft drawn from q stands with
probability min(1, p / q), and else a token drawn from the positive part of p - q: answers then have the model's
distribution p, but depend on what was guessed. A draft is right if it is the token that stands, in either way.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.sample.chooser import RowChoices
from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.random_numbers import Purpose, exponentials, stream_keys, uniforms
from octavo.words.messages import NewRequestData


class Verification(Protocol):
    """Settles the tokens of rows whose next token was guessed. ``needs_logits``: those the samples were drawn from."""

    needs_logits: bool

    def settle(self, token_ids: list[int], logits: Tensor, choices: RowChoices, batch: SamplingBatch) -> None:
        """Change the samples ``token_ids``, one per row, where another token stands.

        choices: by slot, as in ``Chooser``. logits: [R, V] that each was drawn from: after temperature, what was
        filtered out at -inf.
        """
        ...


class ExactMatch:
    """The model's own samples stand."""

    needs_logits = False

    def settle(self, token_ids: list[int], logits: Tensor, choices: RowChoices, batch: SamplingBatch) -> None:
        pass


class Proposals:
    """The distributions that drafts were drawn from, by slot and number; what has none was certain.

    Slots are those of the request table, which calls ``add`` and ``remove``.
    """

    def __init__(self) -> None:
        self._by_draft: dict[tuple[int, int], Tensor] = {}

    def add(self, slot: int, request: NewRequestData) -> None:
        pass

    def remove(self, slot: int) -> None:
        """The slot's drafts are certain until others are kept."""
        for key in [key for key in self._by_draft if key[0] == slot]:
            del self._by_draft[key]

    def keep(self, slot: int, number: int, probabilities: Tensor) -> None:
        """Draft ``number`` of the slot's request was drawn from these [V]."""
        self._by_draft[slot, number] = probabilities

    def get(self, slot: int, number: int, draft: int, vocab_size: int) -> Tensor:
        """[V], what the draft was drawn from."""
        found = self._by_draft.get((slot, number))
        return torch.nn.functional.one_hot(torch.tensor(draft), vocab_size).float() if found is None else found


class RejectionSampling:
    """Rows of greedy requests are verified by exact match, which for them is the same."""

    needs_logits = True

    def __init__(self, proposals: Proposals) -> None:
        self._proposals = proposals

    def settle(self, token_ids: list[int], logits: Tensor, choices: RowChoices, batch: SamplingBatch) -> None:
        rows = [row for row in guessed_rows(batch) if choices["temperature"][batch.slots[row]] > 0]
        if not rows:
            return
        mine = choices[[batch.slots[row] for row in rows]]
        mine["position"] = batch.num_tokens[rows]
        chances = uniforms(_keys(mine, Purpose.ACCEPT), np.zeros(1, dtype=np.int64))[:, 0]
        recovering = _keys(mine, Purpose.RECOVER)
        p = logits[rows].double().softmax(-1)
        for index, row in enumerate(rows):
            slot, number = batch.slots[row], 0 if batch.num_drafts is None else int(batch.num_drafts[row])
            draft = int(batch.token_ids[slot, batch.num_tokens[row]])
            q = self._proposals.get(slot, number, draft, p.shape[1])
            if chances[index] * q[draft] < p[index, draft]:
                token_ids[row] = draft
            else:
                token_ids[row] = _draw((p[index] - q).clamp_(min=0.0), recovering[index], int(token_ids[row]))


def guessed_rows(batch: SamplingBatch) -> list[int]:
    """Rows whose next token was guessed: those before another row of the same request."""
    slots = batch.slots
    return [row for row in range(len(slots) - 1) if slots[row] == slots[row + 1]]


def _draw(weights: Tensor, key: np.uint64, otherwise: int) -> int:
    """A token by its weight [V]; ``otherwise`` where rounding has left none."""
    if not weights.any():
        return otherwise
    with np.errstate(divide="ignore"):
        arrivals = exponentials(np.array([key]), np.arange(len(weights)))[0] / weights.numpy()
    return int(arrivals.argmin())


def _keys(choices: RowChoices, purpose: Purpose) -> npt.NDArray[np.uint64]:
    return stream_keys(choices["seed"], choices["choice_index"], choices["position"], purpose)
