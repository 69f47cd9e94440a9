"""One step on the device, as a straight line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.device.layers.attention import attention_layers, bind_kv_cache
from octavo.device.worker.block_table import BlockTable, BlockTables
from octavo.device.worker.head import Head
from octavo.device.worker.input_batch import GroupInputs, InputBatch, prepare_inputs
from octavo.device.worker.kv_cache import KVCache, layer_groups
from octavo.device.worker.request_table import RequestTable, SlotHolder
from octavo.util.spans import NO_SPANS, Spans
from octavo.words.kv_cache_spec import KVCacheConfig
from octavo.words.messages import GrammarMasks, ModelRunnerOutput, SchedulerOutput


@dataclass(frozen=True)
class Step:
    """A handle: hidden states [T, hidden_size] of a step that waits to be sampled; None where it had no tokens."""

    step_id: int
    batch: InputBatch | None = None
    hidden: Tensor | None = None


class ModelRunner:
    """Runs steps of one model. ``holders`` keep state by slot of the request table.

    ``initialize_kv_cache`` comes first, and again replaces all: memory profiling runs its dummy steps on a small cache.
    """

    def __init__(self, model: nn.Module, head: Head, holders: Sequence[SlotHolder], max_num_requests: int) -> None:
        self._model = model
        self._head = head
        self._holders = tuple(holders)
        self._max_num_requests = max_num_requests
        self.spans: Spans = NO_SPANS

    def initialize_kv_cache(self, config: KVCacheConfig) -> None:
        """Allocate the cache, bind the layers to it, and start with an empty request table."""
        layers = attention_layers(self._model)
        groups = layer_groups(config, layers)
        self._kv_cache = KVCache(config, groups)
        bind_kv_cache(layers, self._kv_cache.layers)
        tables = [
            BlockTable(self._max_num_requests, group.spec.block_size, group.kernel_block_size) for group in groups
        ]
        self._groups = [GroupInputs(group, table) for group, table in zip(groups, tables, strict=True)]
        self._table = RequestTable(self._max_num_requests, BlockTables(tables), self._holders)

    def forget_requests(self) -> None:
        """Drop every request the runner knows."""
        self._table.clear()

    @torch.inference_mode()
    def execute(self, output: SchedulerOutput) -> Step:
        """Compute the hidden states of a decided step. A step without tokens only updates what is known."""
        self._table.update(output)
        self._kv_cache.copy_blocks(output.block_copies)
        self._kv_cache.zero_blocks(output.blocks_to_zero)
        if not output.num_scheduled_tokens:
            return Step(output.step_id)
        with self.spans.span("prepare"):
            batch = prepare_inputs(output, self._table, self._groups)
        with self.spans.span("forward"):
            hidden = self._model(batch.token_ids, batch.positions, batch.context)
        return Step(output.step_id, batch, hidden)

    @torch.inference_mode()
    def sample(self, step: Step, grammar_masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Finish a step: tokens for the requests that are done with their known ones."""
        if step.batch is None or step.hidden is None:
            return ModelRunnerOutput(step_id=step.step_id, request_ids=[], sampled_token_ids=[])
        return self._head.finish(step.hidden, step.batch, self._table, grammar_masks)
