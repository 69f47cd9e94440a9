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
from functools import partial
from typing import Any

from octavo.control.request import BlockHasher, Request
from octavo.control.scheduler.scheduler import Scheduler
from octavo.executor.protocol import Executor, Handle
from octavo.util.spans import NO_SPANS, Span, SpanRecorder, Spans
from octavo.words.errors import UnknownOptionError
from octavo.words.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    ModelRunnerOutput,
    SchedulerOutput,
    SchedulerStats,
)

# Requests exist but none can be computed (all wait for something outside the core): look again after this.
NOTHING_TO_RUN_WAIT_S = 0.001

logger = logging.getLogger(__name__)


class EngineCore:
    """Owns the scheduler and the executor of one engine.

    ``depth`` is the number of steps that may be in flight: 1 waits for each step, 2 plans a step while another runs.
    An error of one request while it is added ends that request with an error output; an error in a step is raised
    and leaves the core unusable.
    """

    def __init__(
        self,
        executor: Executor,
        scheduler: Scheduler,
        block_hasher: BlockHasher | None,
        *,
        depth: int = 1,
        incarnation: int = 0,
    ) -> None:
        self.executor = executor
        self.scheduler = scheduler
        self._block_hasher = block_hasher
        self._depth = depth
        self._incarnation = incarnation
        self._in_flight: deque[tuple[SchedulerOutput, Handle]] = deque()
        self._aborts: queue.SimpleQueue[Sequence[str]] = queue.SimpleQueue()
        self._refused: dict[int, list[EngineCoreOutput]] = {}
        self._spans: Spans = NO_SPANS
        self._calls: dict[str, Callable[..., Any]] = {
            "check_health": executor.check_health,
            "collective_rpc": self._collective_rpc,
            "reset_prefix_cache": scheduler.reset_prefix_cache,
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
        while len(self._in_flight) < self._depth and self.scheduler.has_requests():
            self._launch()
        outputs = self._finish_oldest() if self._in_flight else {}
        return self._with_refused(outputs)

    def _launch(self) -> None:
        with self._spans.span("schedule") as span:
            planned = self.scheduler.schedule()
            if span is not None:
                span.facts.update(step_facts(planned))
        self._in_flight.append((planned, self.executor.execute(planned)))
        if not _says_anything(planned):
            time.sleep(NOTHING_TO_RUN_WAIT_S)

    def _finish_oldest(self) -> dict[int, list[EngineCoreOutput]]:
        planned, handle = self._in_flight.popleft()
        with self._spans.span("sample") as span:
            done = self.executor.sample(handle)
            if span is not None:
                span.facts.update(step=done.step_id, logit_rows=num_logit_rows(planned, done))
        # An abort that came while the step ran must win over its tokens.
        self._drain_aborts()
        with self._spans.span("update"):
            return self.scheduler.update_from_output(planned, done)

    def _with_refused(self, outputs: dict[int, list[EngineCoreOutput]]) -> dict[int, EngineCoreOutputs]:
        refused, self._refused = self._refused, {}
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
            self.scheduler.add_request(request)
        except Exception as error:
            self._refuse(message, error)

    def _refuse(self, message: EngineCoreRequest, error: Exception) -> None:
        logger.warning("Request %s could not be added", message.request_id, exc_info=error)
        output = EngineCoreOutput(
            request_id=message.request_id,
            new_token_ids=[],
            finish_reason=FinishReason.ERROR,
            error=f"{type(error).__name__}: {error}",
        )
        self._refused.setdefault(message.client_index, []).append(output)

    # Rare questions

    def call(self, name: str, *args: Any) -> Any:
        """Answer a question by name (see CALL_RESULTS). Raises what the answerer raises."""
        if name not in self._calls:
            raise UnknownOptionError(name, kind="call")
        return self._calls[name](*args)

    def _start_profile(self) -> None:
        self._spans = SpanRecorder("core")
        self.executor.start_profile()

    def _stop_profile(self) -> list[Span]:
        spans, self._spans = self._spans.take(), NO_SPANS
        return spans + self.executor.stop_profile()

    def _collective_rpc(self, name: str, *args: Any) -> list[Any]:
        return self.executor.collective_rpc(name, *args)

    def shutdown(self) -> None:
        """Release workers, device memory and threads. Steps in flight are dropped."""
        self._in_flight.clear()
        self.executor.shutdown()


CALL_RESULTS: dict[str, Any] = {
    "check_health": None,
    "collective_rpc": list[Any],
    "reset_prefix_cache": bool,
    "start_profile": None,
    "stats": SchedulerStats,
    "stop_profile": list[Span],
}
"""The names EngineCore.call knows, each with the type of its answer."""


def step_facts(planned: SchedulerOutput) -> dict[str, Any]:
    """What a step has to do: its number, and per request [tokens computed before it, tokens it computes]."""
    computed = {new.request_id: new.num_computed_tokens for new in planned.new_requests}
    computed |= {known.request_id: known.num_computed_tokens for known in planned.cached_requests}
    requests = [[computed[request_id], number] for request_id, number in planned.num_scheduled_tokens.items()]
    return {"step": planned.step_id, "requests": requests}


def num_logit_rows(planned: SchedulerOutput, done: ModelRunnerOutput) -> int:
    """Rows a step computed logits for: one per sampled request, and one per draft it verified."""
    drafts = planned.draft_token_ids
    rows = zip(done.request_ids, done.sampled_token_ids, strict=True)
    return sum(1 + len(drafts.get(request_id, ())) for request_id, sampled in rows if sampled)


def _says_anything(planned: SchedulerOutput) -> bool:
    return bool(planned.num_scheduled_tokens or planned.finished_request_ids or planned.preempted_request_ids)
