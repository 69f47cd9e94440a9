"""From logits to one token per row.

Order: raw logits saved for logprobs, text tokens only, allowed ids, bad words, min_tokens, logit_bias, the processors
of the user, penalties, budgets of thought, what a grammar allows, then greedy, or temperature, min_p, top_k, top_p and
a draw. What no row of a batch uses costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.sample.candidates import best_ids
from octavo.device.sample.chooser import ROW_CHOICE, Chooser, TorchChooser
from octavo.device.sample.custom_processors import CustomProcessor
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
from octavo.device.sample.penalties import Penalties
from octavo.device.sample.random_numbers import Purpose
from octavo.device.sample.thinking_budget import ThinkingBudget
from octavo.device.sample.verification import ExactMatch, Verification
from octavo.words.beam_search import num_candidates
from octavo.words.errors import RequestError
from octavo.words.messages import LogprobsRow, NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams


@dataclass(frozen=True)
class SamplerOutput:
    """One token per row; ``logprobs[r]`` where row r asked. ``failed`` maps a row without a usable token to why.

    Of these, ``refused`` are rows of requests that a processor does not take.
    """

    token_ids: list[int]
    logprobs: list[LogprobsRow | None]
    failed: dict[int, str] = field(default_factory=dict)
    refused: Collection[int] = ()


def builtin_processors(
    vocab_size: int, custom: Sequence[LogitsProcessor] = (), grammar_mask: GrammarMask | None = None
) -> tuple[LogitsProcessor, ...]:
    """The processors of SamplingParams, in their order, with those of the user in their place."""
    return (
        TextTokensOnly(vocab_size),
        AllowedTokens(),
        BadWords(),
        MinTokens(),
        LogitBias(),
        *custom,
        Penalties(vocab_size),
        ThinkingBudget(),
        grammar_mask or GrammarMask(),
    )


OF_A_DRAW = frozenset(
    {
        "detokenize",
        "extra_args",
        "ignore_eos",
        "include_stop_str_in_output",
        "max_tokens",
        "min_p",
        "n",
        "output_kind",
        "prompt_logprobs",
        "repetition_detection",
        "seed",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "stop",
        "stop_token_ids",
        "temperature",
        "top_k",
        "top_p",
    }
)
"""Parameters that are nothing to the logits of a token after the prompt, or a part of ``choices``."""

DEFAULTS = SamplingParams()


def is_only_drawn(sampling: ResolvedSampling) -> bool:
    """Whether a request's tokens are drawn from the model's own logits, and nothing but the tokens is asked."""
    params = sampling.params
    others = (name for name in params.__struct_fields__ if name not in OF_A_DRAW)
    is_plain = all(getattr(params, name) == getattr(DEFAULTS, name) for name in others)
    return is_plain and not sampling.bad_words_token_ids


class Sampler:
    """Chooses tokens; holds the parameters of each slot of the request table, which calls ``add`` and ``remove``.

    ``processed_logprobs`` takes returned logprobs from the logits that the token was chosen from, instead of the
    model's own. ``chooser`` works on the logits (None: torch), ``verification`` says what becomes of drafts (None: they
    are compared with the samples).
    """

    def __init__(
        self,
        max_num_slots: int,
        processors: Sequence[LogitsProcessor],
        *,
        processed_logprobs: bool = False,
        chooser: Chooser | None = None,
        verification: Verification | None = None,
    ) -> None:
        self._verification = verification or ExactMatch()
        self._processors = tuple(processors)
        self._chooser = chooser or TorchChooser()
        self._processed_logprobs = processed_logprobs
        self._num_logprobs: dict[int, int] = {}
        self._num_candidates: dict[int, int] = {}
        self._refused: dict[int, str] = {}
        self.choices = np.zeros(max_num_slots, dtype=ROW_CHOICE)
        """How each slot's tokens are drawn."""
        self.num_text_tokens = np.zeros(max_num_slots, dtype=np.int64)
        """By slot: ids from there on are left out."""
        self._only_draws = [False] * max_num_slots
        self._has_own_processors = any(isinstance(each, CustomProcessor) for each in processors)

    def add(self, slot: int, request: NewRequestData) -> None:
        """Take the parameters of the request that now owns the slot."""
        sampling, params = request.sampling, request.sampling.params
        self.num_text_tokens[slot] = sampling.num_text_tokens
        self._only_draws[slot] = not self._has_own_processors and is_only_drawn(sampling)
        mine = self.choices[slot]
        mine["seed"], mine["choice_index"], mine["purpose"] = sampling.seed, sampling.choice_index, Purpose.TOKEN
        mine["temperature"] = 0.0 if params.is_greedy else params.temperature
        mine["top_k"], mine["top_p"], mine["min_p"] = params.top_k, params.top_p, params.min_p
        if params.beam_search is not None:
            self._num_candidates[slot] = num_candidates(params.beam_search.width, len(sampling.end_token_ids))
        elif params.logprobs is not None:
            self._num_logprobs[slot] = params.logprobs
        for processor in self._processors:
            try:
                processor.add(slot, request)
            except RequestError as error:
                self._refused[slot] = str(error)

    def remove(self, slot: int) -> None:
        """Forget the slot's request."""
        self._num_logprobs.pop(slot, None)
        self._num_candidates.pop(slot, None)
        self._refused.pop(slot, None)
        for processor in self._processors:
            processor.remove(slot)

    def only_draws(self, slots: Iterable[int]) -> bool:
        """Whether these slots ask for no more than ``choices`` and ``num_text_tokens``, masks of grammars aside."""
        return all(self._only_draws[slot] for slot in slots)

    def takes_best(self, slots: Sequence[int]) -> bool:
        """Whether the best token is all that these slots ask of their logits, masks of grammars aside."""
        are_greedy = not self.choices["temperature"][slots].any()
        return are_greedy and not self._verification.needs_logits and self.only_draws(slots)

    def usable_best(self, best: Tensor, slots: Sequence[int]) -> list[int]:
        """The ids of ``best`` [R, 2], as ``ops/lm_head_best`` has them; none where not all can be taken.

        A row's best may be no token of text, or no number: ``sample`` knows what to do.
        """
        values, ids = best.numpy().T
        usable = np.isfinite(values) & (ids < self.num_text_tokens[slots])
        token_ids: list[int] = ids.astype(np.int64).tolist() if usable.all() else []
        return token_ids

    def sample(self, logits: Tensor, batch: SamplingBatch) -> SamplerOutput:
        """One token per row of logits [R, V] float32, which is overwritten.

        A row fails alone if its logits hold NaN or +inf, or if no id is left to choose from.
        """
        failed = self._chooser.unusable_rows(logits, "the model's logits")
        asking = (
            [row for row, slot in enumerate(batch.slots) if slot in self._num_logprobs] if self._num_logprobs else []
        )
        raw = logits[asking] if asking and not self._processed_logprobs else None
        beams = self._beams(batch)
        raw_totals = logits[beams].logsumexp(dim=-1) if beams else None  # before anything is left out
        changed = [processor.apply(logits, batch) for processor in self._processors]
        if any(changed):
            problem = "the logits after the request's own constraints"
            failed = self._chooser.unusable_rows(logits, problem) | failed
        refused = self._refused_rows(batch) if self._refused else {}
        failed |= refused
        candidates = self._candidates(logits, batch, beams, raw_totals)
        # In processed mode, the logits then hold what the tokens were chosen from.
        positions: list[int] = batch.num_tokens.tolist()
        keep = self._processed_logprobs or self._verification.needs_logits
        token_ids = self._chooser.choose(logits, self.choices, batch.slots, positions, keep_logits=keep)
        self._verification.settle(token_ids, logits, self.choices, batch)
        rows = self._logprobs(logits[asking] if raw is None else raw, token_ids, asking, batch) if asking else {}
        rows |= candidates
        return SamplerOutput(token_ids, [rows.get(row) for row in range(len(batch.slots))], failed, refused.keys())

    def _refused_rows(self, batch: SamplingBatch) -> dict[int, str]:
        return {row: self._refused[slot] for row, slot in enumerate(batch.slots) if slot in self._refused}

    def guess(
        self, logits: Tensor, batch: SamplingBatch, purpose: Purpose = Purpose.TOKEN, *, keep_logits: bool = False
    ) -> npt.NDArray[np.int64]:
        """What ``sample`` would choose if these were the model's logits, [R].

        Grammars, budgets of thought and the user's processors are left aside: a draft against them is a wrong one. By
        the random numbers of another purpose it is an independent choice. ``keep_logits`` is as in ``Chooser``.
        """
        self._chooser.unusable_rows(logits, "a drafter's logits")
        ours = (each for each in self._processors if not isinstance(each, CustomProcessor | ThinkingBudget))
        changed = [processor.apply(logits, batch) for processor in ours]
        if any(changed):
            self._chooser.unusable_rows(logits, "a drafter's logits")
        choices = self.choices
        if purpose is not Purpose.TOKEN:
            choices = choices.copy()
            choices["purpose"] = purpose
        positions: list[int] = batch.num_tokens.tolist()
        guesses = self._chooser.choose(logits, choices, batch.slots, positions, keep_logits=keep_logits)
        return np.array(guesses, dtype=np.int64)

    def _beams(self, batch: SamplingBatch) -> list[int]:
        if not self._num_candidates:
            return []
        return [row for row, slot in enumerate(batch.slots) if slot in self._num_candidates]

    def _candidates(
        self, logits: Tensor, batch: SamplingBatch, beams: list[int], raw_totals: Tensor | None
    ) -> dict[int, LogprobsRow]:
        """What may follow each beam: the best of what is allowed, by the model's own log-probabilities."""
        if raw_totals is None:
            return {}
        most, chosen_from = [self._num_candidates[batch.slots[row]] for row in beams], logits[beams]
        rows = self._chooser.logprob_rows(chosen_from, best_ids(chosen_from), most)
        left_out = (chosen_from.logsumexp(dim=-1) - raw_totals).tolist()
        shifted = [
            LogprobsRow(row.token_ids, [logprob + shift for logprob in row.logprobs], row.rank)
            for row, shift in zip(rows, left_out, strict=True)
        ]
        return dict(zip(beams, shifted, strict=True))

    def counters(self) -> dict[str, int]:
        """How often since start rows were forced to end their thoughts, and each processor of the user changed any."""
        custom = {each.name: each.num_applied for each in self._processors if isinstance(each, CustomProcessor)}
        budgets = (each.num_forced for each in self._processors if isinstance(each, ThinkingBudget))
        return {"thinking_budget": sum(budgets), **custom}

    def _logprobs(
        self, logits: Tensor, token_ids: list[int], asking: list[int], batch: SamplingBatch
    ) -> dict[int, LogprobsRow]:
        num_best = [self._num_logprobs[batch.slots[row]] for row in asking]
        chosen = torch.tensor([token_ids[row] for row in asking])
        return dict(zip(asking, self._chooser.logprob_rows(logits, chosen, num_best), strict=True))
