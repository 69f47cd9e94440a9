"""The end of a step: from hidden states to what the scheduler gets to know."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.device.sample.grammar_mask import masked_rows
from octavo.device.sample.logits_processors import SamplingBatch
from octavo.device.sample.prompt_logprobs import PromptLogprobs
from octavo.device.sample.sampler import Sampler, SamplerOutput
from octavo.device.worker.graphs import StepGraphs
from octavo.device.worker.input_batch import InputBatch
from octavo.device.worker.request_table import RequestTable
from octavo.words.messages import GrammarMasks, LogprobsRow, ModelRunnerOutput


class Head(Protocol):
    """Finishes a step: samples (SamplingHead), verifies drafts, or pools."""

    def finish(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable, grammar_masks: GrammarMasks | None
    ) -> ModelRunnerOutput:
        """hidden: [T, hidden_size], the batch's tokens. Appends the tokens it makes to the table."""
        ...


class SamplingHead:
    """One token for each request whose known tokens are all computed."""

    def __init__(self, graphs: StepGraphs, sampler: Sampler, prompt_logprobs: PromptLogprobs, vocab_size: int) -> None:
        self._graphs = graphs
        self._sampler = sampler
        self._prompt_logprobs = prompt_logprobs
        self._vocab_size = vocab_size

    def finish(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable, grammar_masks: GrammarMasks | None
    ) -> ModelRunnerOutput:
        prompt_rows, failed = self._score_prompts(hidden, batch, table)
        sampled = self._sample(hidden, batch, table, grammar_masks)
        rows = batch.sampled.tolist()
        failed |= {batch.request_ids[rows[index]]: reason for index, reason in sampled.failed.items()}
        token_ids: list[list[int]] = [[] for _ in batch.request_ids]
        logprobs: list[list[LogprobsRow] | None] = [None] * len(batch.request_ids)
        for row, token_id, logprob in zip(rows, sampled.token_ids, sampled.logprobs, strict=True):
            if batch.request_ids[row] not in failed:
                token_ids[row] = [token_id]
                logprobs[row] = None if logprob is None else [logprob]
        return ModelRunnerOutput(
            step_id=batch.step_id,
            request_ids=batch.request_ids,
            sampled_token_ids=token_ids,
            logprobs=logprobs,
            prompt_logprobs=prompt_rows,
            failed=failed,
        )

    def _sample(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable, grammar_masks: GrammarMasks | None
    ) -> SamplerOutput:
        if not batch.sampled.size:
            return SamplerOutput([], [])
        logits = self._graphs.logits(hidden, batch.sampled_token_rows)
        slots = batch.slots[batch.sampled]
        masked = None
        if grammar_masks is not None:
            ids = (batch.request_ids[row] for row in batch.sampled)
            masked = masked_rows(grammar_masks, {request_id: index for index, request_id in enumerate(ids)})
        sampling_batch = SamplingBatch(slots.tolist(), table.num_tokens[slots], table.token_ids, masked)
        sampled = self._sampler.sample(logits, sampling_batch)
        table.append(slots, sampled.token_ids)
        return sampled

    def _score_prompts(
        self, hidden: Tensor, batch: InputBatch, table: RequestTable
    ) -> tuple[dict[str, list[LogprobsRow]], dict[str, str]]:
        """Rows for the prompt tokens that follow this step's positions, and requests that cannot be scored."""
        rows: dict[str, list[LogprobsRow]] = {}
        failed: dict[str, str] = {}
        for row, num_best in self._prompt_logprobs.asking(batch.slots.tolist()):
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
