"""From logits to one token per row.

Order: raw logits saved for logprobs, text tokens only, allowed ids, bad words, min_tokens, logit_bias, penalties,
what a grammar allows, then greedy, or temperature, min_p, top_k, top_p and a draw. What no row of a batch uses costs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.sample.candidates import best_ids
from octavo.device.sample.distribution import Filters, draw
from octavo.device.sample.grammar_mask import GrammarMask
from octavo.device.sample.logits_processors import (
    AllowedTokens,
    BadWords,
    LogitBias,
    LogitsProcessor,
    MinTokens,
    SamplingBatch,
    TextTokensOnly,
)
from octavo.device.sample.logprobs import logprob_rows
from octavo.device.sample.penalties import Penalties
from octavo.device.sample.random_numbers import Purpose, stream_keys
from octavo.device.sample.usable import unusable_rows
from octavo.words.messages import LogprobsRow, NewRequestData

TILE_BYTES = 2 << 20
"""Logits worked on at a time: every temporary of a draw then stays in the processor's cache."""


@dataclass(frozen=True)
class SamplerOutput:
    """One token per row; ``logprobs[r]`` where row r asked. ``failed`` maps a row without a usable token to why."""

    token_ids: list[int]
    logprobs: list[LogprobsRow | None]
    failed: dict[int, str] = field(default_factory=dict)


def builtin_processors(vocab_size: int) -> tuple[LogitsProcessor, ...]:
    """The processors of SamplingParams, in their order."""
    return (
        TextTokensOnly(vocab_size),
        AllowedTokens(),
        BadWords(),
        MinTokens(),
        LogitBias(),
        Penalties(vocab_size),
        GrammarMask(),
    )


class Sampler:
    """Chooses tokens; holds the parameters of each slot of the request table, which calls ``add`` and ``remove``.

    ``processed_logprobs`` takes returned logprobs from the logits that the token was chosen from, instead of the
    model's own.
    """

    def __init__(
        self, max_num_slots: int, processors: Sequence[LogitsProcessor], *, processed_logprobs: bool = False
    ) -> None:
        self._processors = tuple(processors)
        self._processed_logprobs = processed_logprobs
        self._num_logprobs: dict[int, int] = {}
        self._temperature = np.zeros(max_num_slots, dtype=np.float32)
        self._top_k = np.zeros(max_num_slots, dtype=np.int64)
        self._top_p = np.ones(max_num_slots, dtype=np.float64)
        self._min_p = np.zeros(max_num_slots, dtype=np.float64)
        self._seed = np.zeros(max_num_slots, dtype=np.int64)
        self._choice_index = np.zeros(max_num_slots, dtype=np.int64)

    def add(self, slot: int, request: NewRequestData) -> None:
        """Take the parameters of the request that now owns the slot."""
        params = request.sampling.params
        self._temperature[slot] = 0.0 if params.is_greedy else params.temperature
        self._top_k[slot], self._top_p[slot], self._min_p[slot] = params.top_k, params.top_p, params.min_p
        self._seed[slot], self._choice_index[slot] = request.sampling.seed, request.sampling.choice_index
        if params.logprobs is not None:
            self._num_logprobs[slot] = params.logprobs
        for processor in self._processors:
            processor.add(slot, request)

    def remove(self, slot: int) -> None:
        """Forget the slot's request."""
        self._num_logprobs.pop(slot, None)
        for processor in self._processors:
            processor.remove(slot)

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        """One token per row of logits [R, V] float32, which is overwritten.

        A row fails alone if its logits hold NaN or +inf, or if no id is left to choose from.
        """
        failed = unusable_rows(logits, "the model's logits")
        asking = (
            [row for row, slot in enumerate(batch.slots) if slot in self._num_logprobs] if self._num_logprobs else []
        )
        raw = logits[asking] if asking and not self._processed_logprobs else None
        changed = [processor.apply(logits, batch) for processor in self._processors]
        if any(changed):
            failed = unusable_rows(logits, "the logits after the request's own constraints") | failed
        token_ids = self._choose(logits, batch)
        rows = self._logprobs(logits[asking] if raw is None else raw, token_ids, asking, batch) if asking else {}
        return SamplerOutput(token_ids.tolist(), [rows.get(row) for row in range(len(batch.slots))], failed)

    def _choose(self, logits: Tensor, batch: SamplingBatch) -> Tensor:
        """Tokens of all rows; in processed mode, ``logits`` then holds what they were chosen from."""
        random = np.flatnonzero(self._temperature[batch.slots])
        all_random = random.size == len(batch.slots)
        token_ids = torch.empty(random.size, dtype=torch.int64) if all_random else best_ids(logits)
        per_tile = max(1, TILE_BYTES // (4 * logits.shape[-1]))
        for start in range(0, random.size, per_tile):
            self._draw(logits, batch, random[start : start + per_tile], token_ids)
        return token_ids

    def _draw(self, logits: Tensor, batch: SamplingBatch, random: npt.NDArray[np.int64], token_ids: Tensor) -> None:
        """Fill in the tokens of the rows ``random``."""
        slots, rows = np.asarray(batch.slots)[random], torch.from_numpy(random)
        keys = stream_keys(self._seed[slots], self._choice_index[slots], batch.num_tokens[random], Purpose.TOKEN)
        filters = Filters(self._top_k[slots], self._top_p[slots], self._min_p[slots])
        scaled = logits[rows] / torch.from_numpy(self._temperature[slots])[:, None]
        token_ids[rows], chosen_from = draw(scaled, filters, keys, keep_logits=self._processed_logprobs)
        if chosen_from is not None:
            logits[rows] = chosen_from

    def _logprobs(
        self, logits: Tensor, token_ids: Tensor, asking: list[int], batch: SamplingBatch
    ) -> dict[int, LogprobsRow]:
        num_best = [self._num_logprobs[batch.slots[row]] for row in asking]
        return dict(zip(asking, logprob_rows(logits, token_ids[asking], num_best), strict=True))
