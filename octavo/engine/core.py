"""The engine core: the loop schedule -> execute -> sample -> update, and the requests that enter and leave it.

Free of torch: what computes is behind the Executor. The core never waits for a client; it is driven by one thread
(the caller in-process, the main thread of core_proc otherwise), while ``admission`` and ``abort_soon`` may be called
from another one.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

import msgspec

from octavo.control.request import BlockHasher, Request
from octavo.control.scheduler.quarantine import Quarantine
from octavo.control.scheduler.scheduler import Scheduler
from octavo.control.structured_output.manager import NoStructuredOutput, StructuredOutput
from octavo.engine.failure import failed_outputs
from octavo.engine.snapshot import LimitedSpans, take_snapshot
from octavo.engine.step_facts import sampling_facts, step_facts
from octavo.engine.step_watch import NoStepWatch, StepWatch
from octavo.engine.witness import NO_CLIENT, make_witness
from octavo.executor.protocol import Executor, Handle
from octavo.util.spans import NO_SPANS, Span, SpanRecorder, Spans
from octavo.words.errors import RequestError, UnknownOptionError, UnsupportedError
from octavo.words.lora import Adapter
from octavo.words.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    GrammarMasks,
    SchedulerOutput,
    SchedulerStats,
)
from octavo.words.snapshot import EngineSnapshot

# Requests exist but none can be computed (all wait for something outside the core): look again after this.
NOTHING_TO_RUN_WAIT_S = 0.001

logger = logging.getLogger(__name__)


class _InFlight(NamedTuple):
    """A step that was launched, when, and the masks that its sampling waits for."""

    planned: SchedulerOutput
    handle: Handle
    masks: Future[GrammarMasks] | None
    launched_at: float


class EngineCore:
    """Owns the scheduler and the executor of one engine.

    ``depth`` is the number of steps that may be in flight: 1 waits for each step, 2 plans a step while another runs.
    An error of one request while it is added ends that request with an error output. A step that fails is dropped and
    its requests run again, each alone; one that fails again ends with an error output, and nobody else notices. Unless
    the engine's own witness fails as well: then it is not the request, and the error is raised and leaves the core
    unusable.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        block_hasher: BlockHasher | None,
        *,
        depth: int = 1,
        incarnation: int = 0,
        watch: StepWatch | None = None,
        structured_output: StructuredOutput | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.executor = executor
        self._clock = clock
        self._returned_at: float | None = None
        self.structured_output = structured_output or NoStructuredOutput()
        self.scheduler = scheduler
        self._block_hasher = block_hasher
        self._depth = depth
        self._incarnation = incarnation
        self._watch = watch or NoStepWatch()
        self._quarantine = Quarantine()
        scheduler.add_gate(self._quarantine)
        self._in_flight: deque[_InFlight] = deque()
        self._aborts: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        self._got_tokens: set[str] = set()
        self._refused: dict[int, list[EngineCoreOutput]] = {}
        self._spans: Spans = NO_SPANS
        self._calls: dict[str, Callable[..., Any]] = {
            "check_health": executor.check_health,
            "collective_rpc": self._collective_rpc,
            "load_adapter": self._load_adapter,
            "reset_prefix_cache": scheduler.reset_prefix_cache,
            "snapshot": self._snapshot,
            "start_profile": self._start_profile,
            "stats": scheduler.stats,
            "stop_profile": self._stop_profile,
        }

    # Requests

    def add_request(self, message: EngineCoreRequest) -> None:
        """Queue a request. One that cannot be added is answered with an error output; nothing is raised."""
        self.admission(message)()

    def admission(self, message: EngineCoreRequest) -> Callable[[], None]:
        """Do the slow part of adding a request (its block hashes) and return the action that queues it.

        Safe in any thread; the action belongs to the thread that steps.
        """
        try:
            request = Request(message, self._block_hasher)
            self.structured_output.begin(request)
            if request.adapter is not None:
                self._load_adapter(request.adapter)
        except Exception as error:
            return partial(self._refuse, message, error)
        return partial(self._admit, message, request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests and free what they hold; unknown and finished ids are ignored. They bring no more outputs."""
        self.scheduler.abort_requests(request_ids)

    def abort_soon(self, request_ids: Sequence[str]) -> None:
        """Abort at the next safe point, even while a step runs. Safe in any thread."""
        self._aborts.put(request_ids)

    # The loop

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do anything."""
        return bool(self._in_flight or self._refused) or self.scheduler.has_requests()

    def step(self) -> dict[int, EngineCoreOutputs]:
        """Launch steps until ``depth`` are in flight, finish the oldest; return what it brought, by client index."""
        self._drain_aborts()
        try:
            outputs = self._advance()
        except _StepFailed as failure:
            outputs, self._got_tokens = {}, set()
            self._survive(failure)
        if self._quarantine.on_trial is not None:
            self._judge()
        return self._with_refused(outputs)

    def _advance(self) -> dict[int, list[EngineCoreOutput]]:
        depth = self._depth if self._quarantine.on_trial is None else 1
        while len(self._in_flight) < depth and self.scheduler.has_requests():
            self._launch()
        return self._finish_oldest() if self._in_flight else {}

    def _launch(self) -> None:
        with self._spans.span("schedule") as span:
            planned = self.scheduler.schedule()
            if span is not None:
                span.facts.update(step_facts(planned))
        for request_id, reason in self.structured_output.take_failed().items():
            self.scheduler.fail_request(request_id, reason, is_refused=True)
        masks = self.structured_output.begin_masks(planned, self.scheduler.requests)
        self._watch.launched(planned)
        if self._quarantine.accused is not None:
            self._watch.blame([self._quarantine.accused.request_id])
        launched_at = self._clock()
        try:
            with self._spans.span("execute") as span:
                handle = self.executor.execute(planned)
                if span is not None:
                    span.facts.update(step=planned.step_id)
        except Exception as error:
            raise _StepFailed(planned, [*self._steps_in_flight(), planned], error) from error
        self._in_flight.append(_InFlight(planned, handle, masks, launched_at))
        if not _says_anything(planned):
            time.sleep(NOTHING_TO_RUN_WAIT_S)

    def _finish_oldest(self) -> dict[int, list[EngineCoreOutput]]:
        planned, handle, coming_masks, launched_at = self._in_flight[0]
        try:
            masks = None if coming_masks is None else coming_masks.result()
            with self._spans.span("sample") as span:
                done = self.executor.sample(handle, masks)
                if span is not None:
                    span.facts.update(sampling_facts(planned, done))
        except Exception as error:
            raise _StepFailed(planned, self._steps_in_flight(), error) from error
        self._in_flight.popleft()
        # A step waits for the one before it.
        before, now = launched_at if self._returned_at is None else self._returned_at, self._clock()
        began_at = max(launched_at, before)
        if masks is not None:
            done.failed |= masks.failed
            done.refused += masks.failed
        if self._quarantine.on_trial is not None:
            rows = zip(done.request_ids, done.sampled_token_ids, strict=True)
            self._got_tokens = {request_id for request_id, ids in rows if ids} - done.failed.keys()
        # An abort that came while the step ran must win over its tokens.
        self._drain_aborts()
        with self._spans.span("update") as span:
            outputs = self.scheduler.update_from_output(
                planned, done, seconds=now - began_at, seconds_before=began_at - before
            )
            if span is not None:
                span.facts.update(step=planned.step_id)
        self._watch.returned(planned)
        # Where there is something to do, the next step follows at once.
        self._returned_at = now if self.scheduler.has_unfinished_requests() else None
        return outputs

    def _steps_in_flight(self) -> list[SchedulerOutput]:
        return [each.planned for each in self._in_flight]

    # A step fails

    def _survive(self, failure: _StepFailed) -> None:
        """Drop what is in flight and put the requests of the step that failed on trial."""
        error, request_ids = failure.error, list(failure.step.num_scheduled_tokens)
        logger.error("A step with %d requests failed; each will run alone", len(request_ids), exc_info=error)
        if not request_ids:
            raise error
        self._start_over(failure.lost)
        if request_ids != [self._quarantine.on_trial]:
            self._quarantine.suspect(request_ids)
        elif (accused := self._quarantine.accused) is None:
            self._hear_witness(request_ids[0], error)
        else:
            self._watch.blame([accused.request_id])
            raise error

    def _hear_witness(self, suspect_id: str, error: Exception) -> None:
        """A request failed alone: see whether the engine can compute anything at all."""
        suspect = self.scheduler.requests.get(suspect_id)
        self._quarantine.accuse(f"{type(error).__name__}: {error}")
        self.scheduler.add_request(make_witness(suspect.sampling.pooling if suspect is not None else None))

    def _judge(self) -> None:
        """End the trial of a suspect, or the hearing of the witness, that got a token or is gone."""
        on_trial = self._quarantine.on_trial
        if on_trial in self.scheduler.requests and on_trial not in self._got_tokens:
            return
        guilty = self._quarantine.end_trial()
        if guilty is not None:
            logger.error("Request %s ends with an error: its step fails also when it runs alone", guilty.request_id)
            self.scheduler.fail_request(
                guilty.request_id, f"the engine failed twice while it computed this request: {guilty.reason}"
            )
        if self._quarantine.on_trial is not None:
            self._start_over(self._steps_in_flight())

    def _start_over(self, lost: Sequence[SchedulerOutput]) -> None:
        """Drop all steps in flight (``lost``); requests that ran wait again, what is cached stays."""
        self._in_flight.clear()
        self._watch.lost()
        self.executor.forget_requests()
        self.scheduler.start_over(lost)

    def _with_refused(self, outputs: dict[int, list[EngineCoreOutput]]) -> dict[int, EngineCoreOutputs]:
        refused, self._refused = self._refused, {}
        outputs.pop(NO_CLIENT, None)
        for client_index, errors in refused.items():
            outputs.setdefault(client_index, []).extend(errors)
        stats = self.scheduler.stats()
        return {
            client_index: EngineCoreOutputs(outputs=found, stats=stats, incarnation=self._incarnation)
            for client_index, found in outputs.items()
        }

    def _drain_aborts(self) -> None:
        while not self._aborts.empty():
            self.abort_requests(self._aborts.get())

    def _admit(self, message: EngineCoreRequest, request: Request) -> None:
        try:
            if message.is_suspect:
                self._quarantine.suspect([message.request_id])
            self.scheduler.add_request(request)
        except Exception as error:
            self._refuse(message, error)

    def _refuse(self, message: EngineCoreRequest, error: Exception) -> None:
        logger.warning("Request %s could not be added", message.request_id, exc_info=error)
        is_refused = isinstance(error, RequestError | UnsupportedError)
        reason = str(error) if is_refused else f"{type(error).__name__}: {error}"
        refusals = failed_outputs(message, reason, is_refused=is_refused)
        self._refused.setdefault(message.client_index, []).extend(refusals)

    # Rare questions

    def call(self, name: str, *args: Any) -> Any:
        """Answer a question by name (see CALL_RESULTS). Raises what the answerer raises."""
        if name not in self._calls:
            raise UnknownOptionError(name, kind="call")
        return self._calls[name](*args)

    def _start_profile(self, with_ops: bool = False) -> None:
        self._spans = SpanRecorder("core")
        self.executor.start_profile(with_ops)

    def _stop_profile(self) -> list[Span]:
        watched = isinstance(self._spans, LimitedSpans)
        spans, self._spans = [] if watched else self._spans.take(), NO_SPANS
        return spans + self.executor.stop_profile()

    def _snapshot(self) -> EngineSnapshot:
        """The core as it is now, with the steps since the last look; while a profile is recorded, without."""
        spans: list[Span] = []
        if isinstance(self._spans, LimitedSpans):
            spans = self._spans.take()
        elif self._spans is NO_SPANS:
            self._spans = LimitedSpans("core")
        return take_snapshot(self.scheduler, spans)

    def _load_adapter(self, adapter: Any) -> None:
        """From another process it comes as plain values."""
        self.executor.collective_rpc("load_adapter", msgspec.convert(adapter, Adapter))

    def _collective_rpc(self, name: str, *args: Any) -> list[Any]:
        return self.executor.collective_rpc(name, *args)

    def shutdown(self) -> None:
        """Release workers, device memory and threads. Steps in flight are dropped."""
        self._in_flight.clear()
        self.structured_output.shutdown()
        self.executor.shutdown()


CALL_RESULTS: dict[str, Any] = {
    "check_health": None,
    "collective_rpc": list[Any],
    "load_adapter": None,
    "reset_prefix_cache": bool,
    "snapshot": EngineSnapshot,
    "start_profile": None,
    "stats": SchedulerStats,
    "stop_profile": list[Span],
}
"""The names EngineCore.call knows, each with the type of its answer."""


class _StepFailed(Exception):
    """A step could not be executed or sampled; ``lost`` are all steps in flight, that one included."""

    def __init__(self, step: SchedulerOutput, lost: list[SchedulerOutput], error: Exception) -> None:
        super().__init__(str(error))
        self.step = step
        self.lost = lost
        self.error = error


def _says_anything(planned: SchedulerOutput) -> bool:
    return bool(planned.num_scheduled_tokens or planned.finished_request_ids or planned.preempted_request_ids)
