"""How drafters choose among candidates."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.sampler import Sampler

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
        num_drafts = np.full(len(slots), number)
        batch = SamplingBatch(slots.tolist(), num_known + number, token_ids, num_drafts=num_drafts)
        return self._sampler.guess(logits, batch)
