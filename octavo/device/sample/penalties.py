"""Penalties on tokens that were there before: repetition over prompt and output, frequency and presence over output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.sample.logits_processors import Followed, SamplingBatch
from octavo.words.messages import NewRequestData


@dataclass
class _Seen:
    """One request's penalties, and its tokens counted so far (``num_counted`` catches up with the table)."""

    repetition: float
    frequency: float
    presence: float
    num_prompt_tokens: int
    seen: npt.NDArray[np.bool_]
    output_counts: npt.NDArray[np.float32]
    num_counted: int = field(default=0)

    def count(self, token_ids: npt.NDArray[np.int32]) -> None:
        """Count the tokens from position ``num_counted`` on."""
        self.seen[token_ids] = True
        output = token_ids[max(0, self.num_prompt_tokens - self.num_counted) :]
        np.add.at(self.output_counts, output, 1.0)
        self.num_counted += len(token_ids)

    @contextmanager
    def guessing(self, draft_token_ids: npt.NDArray[np.int32]) -> Iterator[None]:
        """Count drafts too, for as long as the context lasts."""
        seen_before = self.seen[draft_token_ids]
        self.seen[draft_token_ids] = True
        np.add.at(self.output_counts, draft_token_ids, 1.0)
        yield
        np.add.at(self.output_counts, draft_token_ids, -1.0)
        self.seen[draft_token_ids] = seen_before


class Penalties:
    """``repetition_penalty``, ``frequency_penalty``, ``presence_penalty``, in this order.

    A repeated token's logit is divided by the repetition penalty if positive, else multiplied by it.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._requests: Followed[_Seen] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        params = request.sampling.params
        if params.repetition_penalty == 1.0 and params.frequency_penalty == 0.0 and params.presence_penalty == 0.0:
            return
        seen = _Seen(
            repetition=params.repetition_penalty,
            frequency=params.frequency_penalty,
            presence=params.presence_penalty,
            num_prompt_tokens=len(request.prompt_token_ids),
            seen=np.zeros(self._vocab_size, dtype=np.bool_),
            output_counts=np.zeros(self._vocab_size, dtype=np.float32),
        )
        self._requests.add(slot, seen)

    def remove(self, slot: int) -> None:
        self._requests.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        rows = self._requests.rows(batch)
        for row, request in rows:
            drafts = batch.drafts(row)
            if not drafts.size:
                request.count(batch.tokens(row, request.num_counted))
            with request.guessing(drafts):
                _penalise(logits[row], request)
        return bool(rows)


def _penalise(logits: Tensor, request: _Seen) -> None:
    seen = torch.from_numpy(request.seen.nonzero()[0])
    values = logits[seen]
    if request.repetition != 1.0:
        values = torch.where(values > 0, values / request.repetition, values * request.repetition)
    counts = torch.from_numpy(request.output_counts)[seen]
    values -= request.frequency * counts + request.presence * (counts > 0)
    logits[seen] = values
