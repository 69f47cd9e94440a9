"""The steps of a burst in one native call: between two of them no Python runs, which a step's weights made cold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from octavo.device.ops.native.context import NativeContext
from octavo.device.sample.sampler import Sampler
from octavo.device.worker.end_ids import EndIds
from octavo.device.worker.graphs import StepGraphs, WholeStep
from octavo.device.worker.input_batch import InputBatch
from octavo.device.worker.request_table import RequestTable
from octavo.device.worker.step_layout import Addresses, NativeLayout


class DecodeLoop(Protocol):
    """Takes decode steps of which each needs the tokens of the one before."""

    def run(
        self, batch: InputBatch, table: RequestTable, end_ids: EndIds, going: Sequence[bool], num_steps: int
    ) -> list[list[int]] | None:
        """At most ``num_steps`` steps of a batch that was sampled: the tokens of each request, added to the table too.

        It stops when all requests that are ``going`` have met an end, or where one has logits that no token can be
        taken from: it has a token less than the others then. None: take these steps one by one.
        """
        ...


class NoDecodeLoop:
    """All steps are taken one by one."""

    def run(
        self, batch: InputBatch, table: RequestTable, end_ids: EndIds, going: Sequence[bool], num_steps: int
    ) -> list[list[int]] | None:
        return None


class NativeDecodeLoop:
    """Where a step is captured without splits, for requests of which tokens are only drawn."""

    def __init__(self, native: NativeContext, graphs: StepGraphs, sampler: Sampler) -> None:
        self._native = native
        self._graphs = graphs
        self._sampler = sampler
        self._addresses = Addresses()
        self._captured: WholeStep | None = None
        self._loop: Any = None

    def run(
        self, batch: InputBatch, table: RequestTable, end_ids: EndIds, going: Sequence[bool], num_steps: int
    ) -> list[list[int]] | None:
        captured, layout = self._graphs.whole_step(batch.inputs), batch.inputs.layout
        if captured is None or not isinstance(layout, NativeLayout) or not self._sampler.only_draws(batch.slot_list):
            return None
        if captured is not self._captured:
            self._captured, self._loop = captured, self._make_loop(captured, layout)
        table.reserve(batch.counts.max_seq_len + 1 + num_steps)
        of, sampler = self._addresses.of, self._sampler
        tokens: list[int] = self._loop.run(
            self._native.pool,
            *layout.known(table),
            of("choices", sampler.choices),
            of("num_text_tokens", sampler.num_text_tokens),
            of("end_ids", end_ids.ids),
            end_ids.ids.shape[1],
            batch.slot_list,
            going,
            num_steps,
        )
        num_requests = batch.num_requests
        self._graphs.note_loop(len(tokens) // num_requests)
        return [[token for token in tokens[row::num_requests] if token >= 0] for row in range(num_requests)]

    def _make_loop(self, captured: WholeStep, layout: NativeLayout) -> Any:
        rows, logits = self._addresses.of("rows", captured.rows), captured.logits
        graphs = captured.forward, captured.logits_graph, captured.best_graph
        results = (logits.data_ptr(), logits.shape[1], captured.best.data_ptr())
        return self._native.library.DecodeLoop(*graphs, layout.native, rows, *results)
