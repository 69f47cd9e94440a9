"""One step on the device, as a straight line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from torch import Tensor, nn

from octavo.device.layers.attention import attention_layers, bind_kv_cache
from octavo.device.lora.adapters import Adapters, NoAdapters
from octavo.device.worker.block_table import BlockTable, BlockTables
from octavo.device.worker.burst import BurstProgress
from octavo.device.worker.draft_steps import FollowingSteps
from octavo.device.worker.dummy import dummy_end
from octavo.device.worker.end_ids import EndIds
from octavo.device.worker.graphs import StepGraphs, capture_steps
from octavo.device.worker.head import Head
from octavo.device.worker.input_batch import GroupInputs, InputBatch, StepInputs
from octavo.device.worker.kv_cache import KVCache, layer_groups
from octavo.device.worker.prompt_embeds import PromptEmbeds
from octavo.device.worker.request_table import RequestTable, SlotHolder
from octavo.util.spans import NO_SPANS, Spans
from octavo.words.errors import CaptureError
from octavo.words.graph_report import GraphReport
from octavo.words.kv_cache_spec import KVCacheConfig
from octavo.words.messages import GrammarMasks, ModelRunnerOutput, SchedulerOutput


@dataclass(frozen=True)
class Step:
    """A handle: hidden states [T, hidden_size] of a step that waits to be sampled; None where it had no tokens.

    Of a burst it is the first of ``num_decode_steps``.
    """

    step_id: int
    batch: InputBatch | None = None
    hidden: Tensor | None = None
    num_decode_steps: int = 1


class ModelRunner:
    """Runs steps of one model. ``holders`` keep state by slot of the request table.

    ``graphs`` is the model as it is called, ``max_num_tokens`` the most tokens of a step.

    ``drafter_steps`` are those of a drafter with keys and values of its own, which follow this runner's blocks.

    ``initialize_kv_cache`` comes first, and again replaces all: memory profiling runs its dummy steps on a small cache.
    """

    def __init__(
        self,
        model: nn.Module,
        graphs: StepGraphs,
        head: Head,
        holders: Sequence[SlotHolder],
        adapters: Adapters | None = None,
        *,
        drafter_steps: FollowingSteps | None = None,
        max_num_requests: int,
        max_num_tokens: int,
    ) -> None:
        self._drafter_steps = drafter_steps
        self._model = model
        self.graphs = graphs
        self.adapters = adapters or NoAdapters()
        self._prompt_embeds = PromptEmbeds()
        self._end_ids = EndIds(max_num_requests)
        self._holders = (*holders, self.adapters, self._prompt_embeds, self._end_ids)
        self.head = head
        self._max_num_requests = max_num_requests
        self._max_num_tokens = max_num_tokens
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
        sizes = {"max_num_requests": self._max_num_requests, "max_num_tokens": self._max_num_tokens}
        self._inputs = StepInputs(
            [
                GroupInputs(group, table, max_model_len=config.max_model_len, **sizes)
                for group, table in zip(groups, tables, strict=True)
            ],
            **sizes,
            library=self.graphs.library,
        )
        self.graphs.forget("not captured yet")
        self._config = config
        self._table = RequestTable(self._max_num_requests, BlockTables(tables), self._holders)
        if self._drafter_steps is not None:
            self._drafter_steps.follow(config, tables)

    def forget_requests(self) -> None:
        """Drop every request the runner knows."""
        self._table.clear()

    def capture_graphs(self, vocab_size: int) -> GraphReport:
        """Record a step, and hold replays at other sizes to eager steps; from then on steps are replayed.

        A model that cannot be recorded, or whose replays differ, goes on op by op, and the report says why.
        """
        record, *checks = capture_steps(
            self._config,
            max_num_tokens=self._max_num_tokens,
            max_num_requests=self._max_num_requests,
            vocab_size=vocab_size,
        )
        try:
            with self._made_up(record) as batch:
                self.graphs.record(batch)
                if self._drafter_steps is not None:
                    self._drafter_steps.record(batch, self._table.token_ids)
            for output in checks:
                with self._made_up(output) as batch:
                    self.graphs.check(batch)
                    if self._drafter_steps is not None:
                        self._drafter_steps.check(batch, self._table.token_ids)
        except CaptureError as error:
            self.graphs.forget(str(error))
        return self.graphs.report()

    @contextmanager
    def _made_up(self, output: SchedulerOutput) -> Iterator[InputBatch]:
        self._table.update(output)
        for request in output.new_requests:
            self._kv_cache.zero_blocks([block for blocks in request.block_ids for block in blocks])
        try:
            yield self._inputs.prepare(output, self._table)
        finally:
            self._table.update(dummy_end(output))

    def execute(self, output: SchedulerOutput) -> Step:
        """Compute the hidden states of a decided step. A step without tokens only updates what is known."""
        self._table.update(output)
        self._kv_cache.copy_blocks(output.block_copies)
        if output.block_copies and self._drafter_steps is not None:
            self._drafter_steps.copy_blocks(output.block_copies)
        self._kv_cache.zero_blocks(output.blocks_to_zero)
        if not output.num_scheduled_tokens:
            return Step(output.step_id)
        with self.spans.span("prepare"):
            batch = self._inputs.prepare(output, self._table)
            given = self._prompt_embeds.of_step(batch)
            batch = batch if given is None else replace(batch, given=given)
            self.adapters.begin_step(batch.slots, batch.query_start_loc)
        return Step(output.step_id, batch, self._forward(batch), output.num_decode_steps)

    def _forward(self, batch: InputBatch) -> Tensor:
        with self.spans.span("forward"):
            hidden = self.graphs.forward(batch)
        if self.spans.detailed:
            self.spans.extend(self.graphs.forward_spans())
        return hidden

    def sample(self, step: Step, grammar_masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Finish a step: tokens for the requests that are done with their known ones, and guesses for the next step."""
        if step.batch is None or step.hidden is None:
            return ModelRunnerOutput(step_id=step.step_id, request_ids=[], sampled_token_ids=[])
        output = self._finish(step.hidden, step.batch, grammar_masks)
        refused = self.adapters.take_failed()
        output.failed |= refused
        output.refused += refused
        if step.num_decode_steps > 1:
            self._decode_on(step.batch, output, step.num_decode_steps)
        self.head.look_back(step.batch, self._table, output)
        return output

    def _finish(self, hidden: Tensor, batch: InputBatch, grammar_masks: GrammarMasks | None) -> ModelRunnerOutput:
        output = self.head.finish(hidden, batch, self._table, grammar_masks)
        if self.spans.detailed and batch.counts.num_sampled:
            self.spans.extend(self.graphs.logits_spans())
        return output

    def _decode_on(self, batch: InputBatch, output: ModelRunnerOutput, num_steps: int) -> None:
        """Add the steps of a burst to the ``output`` of its first, until all requests have ended."""
        progress = BurstProgress(output, self._end_ids.of(batch.slot_list))
        if progress.goes_on and not self.spans.detailed and self._decode_at_once(batch, progress, num_steps - 1):
            return
        while progress.goes_on and output.num_decode_steps < num_steps:
            with self.spans.span("prepare"):
                batch = self._inputs.prepare_next(batch, self._table)
                self.adapters.begin_step(batch.slots, batch.query_start_loc)
            progress.add(self._finish(self._forward(batch), batch, None))

    def _decode_at_once(self, batch: InputBatch, progress: BurstProgress, num_steps: int) -> bool:
        with self.spans.span("decode loop"):
            token_ids = self.head.loop.run(batch, self._table, self._end_ids, progress.going, num_steps)
        if token_ids is None:
            return False
        num_run = max(map(len, token_ids))
        self.adapters.note_repeats(num_run)
        progress.add_tokens(token_ids, num_steps=num_run)
        return True
