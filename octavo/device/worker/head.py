"""The end of a step: from hidden states to what the scheduler gets to know."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from octavo.device.sample.grammar_mask import masked_rows
from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.prompt_logprobs import PromptLogprobs
from octavo.device.sample.sampler import Sampler, SamplerOutput
from octavo.device.spec_decode.drafter import Drafter, NoDrafter, SaidTokens
from octavo.device.spec_decode.verify import num_right
from octavo.device.worker.decode_loop import DecodeLoop, NoDecodeLoop
from octavo.device.worker.graphs import StepGraphs
from octavo.device.worker.input_batch import InputBatch
from octavo.device.worker.request_table import RequestTable
from octavo.words.messages import GrammarMasks, LogprobsRow, ModelRunnerOutput


class Head(Protocol):
    """Finishes a step: samples, verifies drafts and guesses new ones (SamplingHead), or pools.

    ``loop`` takes the steps after one that was finished.
    """

    loop: DecodeLoop

    def finish(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable, grammar_masks: GrammarMasks | None
    ) -> ModelRunnerOutput:
        """hidden: [T, hidden_size], the batch's tokens. Appends the tokens it makes to the table."""
        ...

    def look_back(self, batch: InputBatch, table: RequestTable, output: ModelRunnerOutput) -> None:
        """A step or burst is over after which nothing is to be guessed: drafters may learn from what it said."""
        ...

    def counters(self) -> dict[str, int]:
        """What it counted since start, by name."""
        ...


class SamplingHead:
    """Tokens for each request whose known tokens are all computed: one, and one more for each draft that was right.

    ``drafter`` sees the step's hidden states and guesses tokens for the next one (None: nobody does). ``loop`` takes
    several steps at once where it can (None: never).
    """

    def __init__(
        self,
        graphs: StepGraphs,
        sampler: Sampler,
        prompt_logprobs: PromptLogprobs,
        vocab_size: int,
        drafter: Drafter | None = None,
        loop: DecodeLoop | None = None,
    ) -> None:
        self.loop: DecodeLoop = loop or NoDecodeLoop()
        self._drafter = drafter or NoDrafter()
        self._graphs = graphs
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._vocab_size = vocab_size

    def finish(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable, grammar_masks: GrammarMasks | None
    ) -> ModelRunnerOutput:
        prompt_rows, failed = self._score_prompts(hidden, batch, table)
        sampled = self._sample(hidden, batch, table, grammar_masks)
        refused: list[str] = []
        token_ids: list[list[int]] = [[] for _ in batch.request_ids]
        logprobs: list[list[LogprobsRow] | None] = [None] * len(batch.request_ids)
        for row, num_drafts, first in _sampled(batch):
            if first in sampled.failed:
                failed[batch.request_ids[row]] = sampled.failed[first]
                refused += [batch.request_ids[row]] if first in sampled.refused else []
            if batch.request_ids[row] not in failed:
                end = first + _num_taken(sampled, first, _drafts(batch, table, row, num_drafts))
                token_ids[row] = sampled.token_ids[first:end]
                logprobs[row] = [each for each in sampled.logprobs[first:end] if each is not None] or None
        table.append(batch.slot_list, token_ids)
        output = ModelRunnerOutput(
            step_id=batch.step_id,
            request_ids=batch.request_ids,
            sampled_token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_rows,
            failed=failed,
            refused=refused,
        )
        if batch.num_drafts_to_guess or self._drafter.follows_steps:
            self._draft(hidden, batch, table, output)
        return output

    def _draft(self, hidden: Tensor, batch: InputBatch, table: RequestTable, output: ModelRunnerOutput) -> None:
        began = time.perf_counter()
        most = max(batch.num_drafts_to_guess.values(), default=0)
        output.draft_token_ids = self._drafter.propose(
            _said(batch, table, output, hidden, room=most), batch.num_drafts_to_guess
        )
        output.draft_seconds = time.perf_counter() - began

    def look_back(self, batch: InputBatch, table: RequestTable, output: ModelRunnerOutput) -> None:
        if not self._drafter.looks_back or batch.num_drafts_to_guess:
            return
        began = time.perf_counter()
        output.draft_trials = self._drafter.look_back(_said(batch, table, output), batch.num_trial_drafts)
        output.draft_seconds = time.perf_counter() - began

    def counters(self) -> dict[str, int]:
        return self._sampler.counters()

    def _sample(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable, grammar_masks: GrammarMasks | None
    ) -> SamplerOutput:
        if not batch.counts.num_sampled:
            return SamplerOutput([], [])
        slots = batch.logit_slots.tolist()
        if grammar_masks is None and (best := self._best_tokens(hidden, batch, slots)):
            return SamplerOutput(best, [None] * len(best))
        logits = self._graphs.logits(hidden, batch.sampled_token_rows)
        masked = None
        if grammar_masks is not None:
            masked = masked_rows(grammar_masks, {batch.request_ids[row]: first for row, _, first in _sampled(batch)})
        return self._sampler.sample(
            logits, SamplingBatch(slots, batch.logit_positions, table.token_ids, masked, batch.logit_drafts)
        )

    def _best_tokens(self, hidden: Tensor, batch: InputBatch, slots: list[int]) -> list[int]:
        """Tokens of rows that take the best, without logits that anybody keeps; none where those are needed."""
        if not self._sampler.takes_best(slots):
            return []
        best = self._graphs.best(hidden, batch.sampled_token_rows)
        return [] if best is None else self._sampler.usable_best(best, slots)

    def _score_prompts(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable
    ) -> tuple[dict[str, list[LogprobsRow]], dict[str, str]]:
        """Rows for the prompt tokens that follow this step's positions, and requests that cannot be scored."""
        rows: dict[str, list[LogprobsRow]] = {}
        failed: dict[str, str] = {}
        if not self._prompt_logprobs.is_asked:
            return rows, failed
        for row, num_best in self._prompt_logprobs.asking(batch.slot_list):
            request_id, slot = batch.request_ids[row], batch.slots[row]
            start = int(batch.num_computed[row])
            # The last prompt position predicts the first output token, which is none of ours.
            end = min(int(batch.seq_lens[row]), int(table.num_prompt_tokens[slot]) - 1)
            if end <= start:
                continue
            first = int(batch.query_start_loc[row])
            targets = torch.from_numpy(table.token_ids[slot, start + 1 : end + 1]).long()
            chunk = hidden[first : first + end - start]
            rows[request_id], problem = self._prompt_logprobs.score(
                chunk, targets, num_best, self._graphs.compute_logits, self._vocab_size
            )
            if problem is not None:
                failed[request_id] = problem
        return rows, failed


def _said(
    batch: InputBatch, table: RequestTable, output: ModelRunnerOutput, hidden: Tensor | None = None, *, room: int = 0
) -> SaidTokens:
    """A step, or a burst as one, as drafters see it; ``room`` for drafts is left behind the tokens."""
    num_said = np.fromiter(map(len, output.sampled_token_ids), np.int64, batch.num_requests)
    num_tokens, is_sampled = table.num_tokens[batch.slots], num_said > 0
    table.reserve(int(num_tokens.max()) + room)
    if output.num_decode_steps > 1:  # The batch's arrays are those of its last step.
        num_computed, num_kept = num_tokens - 1 - num_said, num_said
    else:
        num_computed = batch.num_computed
        # The newest token is known, and not computed.
        num_kept = np.minimum(batch.seq_lens, num_tokens - is_sampled) - num_computed
    return SaidTokens(
        request_ids=batch.request_ids,
        slots=batch.slots,
        token_ids=table.token_ids,
        num_tokens=num_tokens,
        num_computed=num_computed,
        num_kept=num_kept,
        is_sampled=is_sampled,
        hidden=hidden,
        first_rows=batch.query_start_loc[:-1].astype(np.int64),
    )


def _sampled(batch: InputBatch) -> Iterator[tuple[int, int, int]]:
    """Of each sampled request: its row of the batch, how many drafts it has, and its first row of the logits."""
    first = 0
    for row, num_drafts in zip(batch.sampled.tolist(), batch.num_drafts.tolist(), strict=True):
        yield row, num_drafts, first
        first += 1 + num_drafts


def _drafts(batch: InputBatch, table: RequestTable, row: int, num_drafts: int) -> list[int]:
    """The drafts that the step verifies for a request."""
    if not num_drafts:
        return []
    end = int(batch.seq_lens[row])
    drafts: list[int] = table.token_ids[batch.slots[row], end - num_drafts : end].tolist()
    return drafts


def _num_taken(sampled: SamplerOutput, first: int, drafts: list[int]) -> int:
    """How many of a request's tokens count; a row that fails after them is met again, as the first one."""
    num_taken = 1 + num_right(sampled.token_ids[first:], drafts) if drafts else 1
    return next((index for index in range(1, num_taken) if first + index in sampled.failed), num_taken)
