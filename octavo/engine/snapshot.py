"""Snapshots of an engine core. Nothing is recorded for them until somebody asks for the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from itertools import chain, islice

from octavo.control.request import Request
from octavo.control.scheduler.scheduler import Scheduler
from octavo.util.spans import NO_SPANS, Span, SpanRecorder
from octavo.words.snapshot import BlockMap, EngineSnapshot, RequestProgress, StepTimes

MAX_CELLS = 2048
MAX_REQUESTS = 128
MAX_STEPS = 200
MAX_SPANS = 4 * MAX_STEPS
"""Spans that are kept for the next snapshot."""


class LimitedSpans:
    """Records until it holds MAX_SPANS and then nothing until they are taken: who looks once and goes away leaves
    no cost behind."""

    detailed = False

    def __init__(self, track: str) -> None:
        self._recorder = SpanRecorder(track)

    def span(self, name: str) -> AbstractContextManager[Span | None]:
        return self._recorder.span(name) if len(self._recorder) < MAX_SPANS else NO_SPANS.span(name)

    def extend(self, spans: Iterable[Span]) -> None:
        self._recorder.extend(spans)

    def take(self) -> list[Span]:
        return self._recorder.take()


def take_snapshot(scheduler: Scheduler, spans: Iterable[Span]) -> EngineSnapshot:
    """The core between two steps. Costs O(cells + requests shown), whatever the size of the pool."""
    shown = islice(chain(scheduler.running, scheduler.waiting), MAX_REQUESTS)
    return EngineSnapshot(
        blocks=block_map(scheduler),
        num_requests=len(scheduler.running) + len(scheduler.waiting),
        requests=[_progress(request, scheduler) for request in shown],
        steps=steps_of(spans)[-MAX_STEPS:],
        token_budget=scheduler.limits.max_num_batched_tokens,
        max_num_seqs=scheduler.limits.max_num_seqs,
    )


def block_map(scheduler: Scheduler) -> BlockMap:
    """The pool as at most MAX_CELLS cells."""
    kv_cache = scheduler.kv_cache
    blocks_per_cell = max(-(-kv_cache.num_usable_blocks // MAX_CELLS), 1)
    return BlockMap(
        num_blocks=kv_cache.num_usable_blocks,
        num_free=kv_cache.num_free_blocks,
        blocks_per_cell=blocks_per_cell,
        runs=list(_runs(kv_cache.block_states(every=blocks_per_cell))),
    )


def steps_of(spans: Iterable[Span]) -> list[StepTimes]:
    """Spans of the core by the step that they belong to, in order; steps without tokens are left out."""
    steps: dict[int, StepTimes] = {}
    for span in spans:
        if span.name == "schedule" and span.facts["requests"]:
            numbers = [number for _, number in span.facts["requests"]]
            num_decode = sum(number == 1 for number in numbers)
            steps[span.facts["step"]] = StepTimes(
                step_id=span.facts["step"],
                seconds={},
                num_prefill_tokens=sum(numbers) - num_decode,
                num_decode_tokens=num_decode,
            )
        if (step := steps.get(span.facts.get("step", 0))) is not None:
            step.seconds[span.name] = span.duration_ns / 1e9
            step.num_decode_tokens *= span.facts.get("num_steps", 1)
    return list(steps.values())


def _progress(request: Request, scheduler: Scheduler) -> RequestProgress:
    return RequestProgress(
        request_id=request.request_id,
        status=request.status.name.lower(),
        arrived_at=request.arrival_time,
        num_prompt_tokens=request.num_prompt_tokens,
        num_output_tokens=request.num_output_tokens,
        num_computed_tokens=min(request.num_computed_tokens, request.num_tokens),
        num_cached_tokens=max(request.num_cached_tokens, 0),
        max_total_tokens=request.max_total_tokens,
        num_preemptions=request.num_preemptions,
        num_blocks=scheduler.kv_cache.num_blocks_of(request.request_id),
    )


def _runs(states: Iterable[int]) -> Iterator[tuple[int, int]]:
    last, length = -1, 0
    for state in states:
        if state != last and length:
            yield last, length
            length = 0
        last = state
        length += 1
    if length:
        yield last, length
