"""How drafters choose among candidates."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.random_numbers import Purpose
from octavo.device.sample.sampler import Sampler
from octavo.device.sample.verification import Proposals

Ints = npt.NDArray[np.int64]


class DraftSampler(Protocol):
    """Chooses drafts."""

    def choose(
        self, logits: Tensor, slots: Ints, num_known: Ints, number: int, token_ids: npt.NDArray[np.int32]
    ) -> Ints:
        """Draft ``number`` of the requests in ``slots``, from logits [R, V] float32, which are overwritten.

        ``token_ids`` [slots, columns] holds ``num_known`` tokens of each, and its drafts before this one behind them.
        """
        ...


class CoupledSampler:
    """As the model would choose: with each request's parameters, and the random numbers of the position.

    Two distributions that are alike then mostly say the same token, and verification stays an exact match. What a
    grammar allows is not known here: a draft against it is a wrong one.
    """

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def choose(
        self, logits: Tensor, slots: Ints, num_known: Ints, number: int, token_ids: npt.NDArray[np.int32]
    ) -> Ints:
        return self._sampler.guess(logits, _batch(slots, num_known, number, token_ids))


class IndependentSampler:
    """By random numbers of its own, as rejection sampling wants it, which gets to know what drafts were drawn from."""

    def __init__(self, sampler: Sampler, proposals: Proposals) -> None:
        self._sampler = sampler
        self._proposals = proposals

    def choose(
        self, logits: Tensor, slots: Ints, num_known: Ints, number: int, token_ids: npt.NDArray[np.int32]
    ) -> Ints:
        batch = _batch(slots, num_known, number, token_ids)
        drafts = self._sampler.guess(logits, batch, Purpose.DRAFT, keep_logits=True)
        # The rows of greedy requests mean nothing, and are not asked for.
        for slot, probabilities in zip(slots.tolist(), logits.double().softmax(-1).float(), strict=True):
            self._proposals.keep(slot, number, probabilities)
        return drafts


def _batch(slots: Ints, num_known: Ints, number: int, token_ids: npt.NDArray[np.int32]) -> SamplingBatch:
    num_drafts = np.full(len(slots), number)
    return SamplingBatch(slots.tolist(), num_known + number, token_ids, num_drafts=num_drafts)
