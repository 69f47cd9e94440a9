"""A core process that is started again when it dies or hangs, with the requests in flight going on where they were.

    front end --> Supervisor --> ProcessClient --> core process (incarnation 0, 1, 2 ...)

The supervisor keeps, for each request in flight, the tokens that the front end has taken. When a core has ended, the
next one is given prompt and tokens (a replay) and samples what the first would have sampled; the front end sees a
pause and nothing else. Outputs of an earlier incarnation that were not taken yet are dropped: they come again.

The requests of the step in which a core ended are suspects and run alone first (control/scheduler/quarantine.py). One
that ends a second core, without a token in between, ends with an error.
"""

from __future__ import annotations

import atexit
import contextlib
import enum
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from octavo.config.engine_config import EngineConfig
from octavo.engine.core_process import CoreProcess
from octavo.engine.core_progress import LOOK_EVERY_S, CoreProgress
from octavo.engine.failure import failed_outputs
from octavo.engine.info import EngineInfo
from octavo.engine.metric import Counter, Gauge, Metric
from octavo.engine.process_client import OutputQueue, ProcessClient
from octavo.engine.replay import ReplayableRequest, TotalsOfAllCores
from octavo.words.errors import EngineDeadError, EngineError, EngineStartError
from octavo.words.messages import (
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulerStats,
)

# Last words come before the end; a core that does not end by itself after them is helped.
END_TIMEOUT_S = 5.0
# A core that lived this long was well, whether or not anybody asked it anything.
WELL_AFTER_S = 300.0
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0
DEATHS_OF_THE_GUILTY = 2
RECOVERING = "the engine core is being started again; ask later"
# The incarnation of what the supervisor says itself; it is never out of date.
OWN_WORDS = -1

logger = logging.getLogger(__name__)


class EngineState(enum.Enum):
    """How the engine is. It answers in READY only; STOPPED is after ``shutdown``."""

    STARTING = "starting"
    READY = "ready"
    RECOVERING = "recovering"
    DEAD = "dead"
    STOPPED = "stopped"


class SupervisorStats(msgspec.Struct, frozen=True):
    """Totals since start: restarts of the core, requests replayed, requests ended for ending cores."""

    restarts: int = 0
    replays: int = 0
    convictions: int = 0


class Supervisor:
    """An EngineCoreClient over core processes, each in place of the one before it.

    ``start`` makes a client that is not ready yet, from an incarnation and the queue for its outputs. Any number of
    threads may use one Supervisor; one of its own watches the core. Raises EngineStartError if the first core does
    not start.
    """

    def __init__(
        self, start: Callable[[int, OutputQueue], ProcessClient], *, max_restarts: int, stuck_timeout_s: float
    ) -> None:
        self._start_core = start
        self._max_restarts = max_restarts
        self._stuck_timeout_s = stuck_timeout_s
        self._lock = threading.Lock()
        self._outputs: OutputQueue = queue.SimpleQueue()
        self._requests: dict[str, ReplayableRequest] = {}
        self._totals = TotalsOfAllCores()
        self._state = EngineState.STARTING
        self._death: EngineDeadError | None = None
        self._stats = SupervisorStats()
        self._stopping = threading.Event()
        self._attempts = 0
        self._incarnation = 0
        self._core = start(0, self._outputs)
        self._progress = CoreProgress(self._core.watch, stuck_timeout_s)
        self._core.wait_until_ready()
        self._state = EngineState.READY
        self._ready_at = time.monotonic()
        self._thread = threading.Thread(target=self._supervise, name="octavo-supervisor", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)

    @property
    def info(self) -> EngineInfo:
        return self._core.info

    @property
    def pid(self) -> int:
        """Process id of the present core."""
        return self._core.pid

    @property
    def state(self) -> EngineState:
        """How the engine is now."""
        return self._state

    @property
    def stats(self) -> SupervisorStats:
        """What happened so far."""
        return self._stats

    @property
    def problem(self) -> str | None:
        if self._death is not None:
            return str(self._death)
        if self._state is not EngineState.READY:
            return RECOVERING
        if self._progress.is_late:
            return f"the engine core has made no progress for {self._progress.stalled_s:.0f} s"
        return None

    def add_request(self, request: EngineCoreRequest) -> None:
        with self._lock:
            self._check_alive()
            self._requests[request.request_id] = ReplayableRequest(request)
            self._tell_core(lambda core: core.add_request(request))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        with self._lock:
            self._check_alive()
            for request_id in request_ids:
                self._requests.pop(request_id, None)
            self._tell_core(lambda core: core.abort_requests(request_ids))

    def get_output(self, *, blocking: bool = True) -> EngineCoreOutputs | None:
        self._core.check_owner()
        while True:
            try:
                outputs = self._outputs.get(block=blocking)
            except queue.Empty:
                return None
            with self._lock:
                if outputs is None:  # a core has ended, which concerns the front end only if it was the last
                    if self._death is not None:
                        self._outputs.put(None)  # for the next who waits
                        raise self._death
                elif outputs.incarnation in (self._incarnation, OWN_WORDS):
                    self._take_note(outputs)
                    return outputs

    def call(self, name: str, *args: Any) -> Any:
        """Ask the core. Raises EngineError at once while it is being restarted, and when it ends without an answer."""
        if name == "check_health":
            return self.check_health()
        with self._lock:
            self._check_ready()
            core = self._core
        try:
            answer = core.call(name, *args)
        except EngineDeadError as error:
            raise self._death or EngineError(f"the engine core ended while it was asked for {name!r}") from error
        return self._totals.since_start(answer) if isinstance(answer, SchedulerStats) else answer

    def check_health(self) -> None:
        """Return if the core is ready and makes progress where it has work; answers at once, whatever the core does."""
        self._check_alive()
        if (problem := self.problem) is not None:
            raise EngineError(problem)

    def metrics(self) -> list[Metric]:
        stats = self._stats
        return [
            Gauge("octavo:engine_ready", float(self.problem is None)),
            Counter("octavo:engine_restarts", stats.restarts),
            Counter("octavo:request_replays", stats.replays),
            Counter("octavo:requests_ended_with_engine", stats.convictions),
        ]

    def shutdown(self) -> None:
        atexit.unregister(self.shutdown)
        self._stopping.set()
        with self._lock:
            core, self._state = self._core, EngineState.STOPPED
            self._death = self._death or EngineDeadError("the engine was shut down")
        core.shutdown()
        if self._thread is not threading.current_thread():
            self._thread.join(END_TIMEOUT_S)
        self._outputs.put(None)

    def _check_alive(self) -> None:
        if self._death is not None:
            raise self._death

    def _check_ready(self) -> None:
        self._check_alive()
        if self._state is not EngineState.READY:
            raise EngineError(RECOVERING)

    def _tell_core(self, tell: Callable[[ProcessClient], None]) -> None:
        """A core that is not there, or no more, is told by the replay."""
        if self._state is EngineState.READY:
            with contextlib.suppress(EngineDeadError):
                tell(self._core)

    def _take_note(self, outputs: EngineCoreOutputs) -> None:
        """Outputs are about to be taken by the front end: that far need no request go back."""
        for output in outputs.outputs:
            request = self._requests.get(output.request_id)
            if request is None:
                continue
            if output.finish_reason is not None:
                del self._requests[output.request_id]
            elif output.new_token_ids:
                request.take(output)
        if outputs.incarnation != OWN_WORDS:
            self._attempts = 0
        if outputs.stats is not None:
            outputs.stats = self._totals.since_start(outputs.stats)

    # The thread that watches

    def _supervise(self) -> None:
        while not self._stopping.is_set():
            self._wait_for_the_end(self._core)
            if self._stopping.is_set() or self._core.is_stopping:
                return
            cause = self._core.cause_of_death or "the engine core ended"
            logger.error("%s", cause)
            if not self._recover(cause):
                return

    def _wait_for_the_end(self, core: ProcessClient) -> None:
        look_every_s = min(LOOK_EVERY_S, self._stuck_timeout_s / 4)
        last_words_at: float | None = None
        while not core.wait_until_ended(look_every_s):
            if core.cause_of_death is not None:
                last_words_at = last_words_at or time.monotonic()
                if time.monotonic() - last_words_at > END_TIMEOUT_S:
                    core.kill(core.cause_of_death)
                continue
            has_work = bool(self._requests or core.num_unanswered_calls)
            if self._progress.look(has_work=has_work):
                core.kill(
                    f"the engine core was killed: it made no progress for {self._progress.stalled_s:.0f} s with "
                    f"{len(self._requests)} requests in flight"
                )

    def _recover(self, cause: str) -> bool:
        """Start another core and give it all requests in flight; False: the engine is dead."""
        with self._lock:
            if self._stopping.is_set():
                return False
            self._state = EngineState.RECOVERING
            self._convict(self._accuse(self._core.watch.running_ids()))
        self._core.shutdown()
        if time.monotonic() - self._ready_at > WELL_AFTER_S:
            self._attempts = 0
        while self._attempts < self._max_restarts:
            backoff_s = min(FIRST_BACKOFF_S * 2 ** (self._attempts - 1), LONGEST_BACKOFF_S) if self._attempts else 0.0
            self._attempts += 1
            logger.warning(
                "Starting the engine core again (attempt %d of %d%s); %d requests in flight will go on",
                self._attempts,
                self._max_restarts,
                f", in {backoff_s:.1f} s" if backoff_s else "",
                len(self._requests),
            )
            if self._stopping.wait(backoff_s):
                return False
            try:
                self._start_next()
            except EngineStartError as error:
                if self._stopping.is_set():
                    return False
                cause = str(error)
                logger.error("%s", cause)
            else:
                return True
        self._die(cause)
        return False

    def _start_next(self) -> None:
        with self._lock:
            if self._stopping.is_set():
                raise EngineStartError("the engine was shut down")
            core = self._core = self._start_core(self._incarnation + 1, self._outputs)
        core.wait_until_ready()
        with self._lock:
            if self._stopping.is_set():
                return
            self._incarnation += 1
            self._progress = CoreProgress(core.watch, self._stuck_timeout_s)
            self._totals.turn_page()
            self._state, self._ready_at = EngineState.READY, time.monotonic()
            self._replay()
        logger.info("The engine core is ready again (incarnation %d)", self._incarnation)

    def _replay(self) -> None:
        """Give the new core all requests in flight, suspects first."""
        requests = sorted(self._requests.values(), key=lambda request: not request.num_deaths)
        for request in requests:
            self._tell_core(lambda core, request=request: core.add_request(request.replay()))  # type: ignore[misc]
        self._stats = msgspec.structs.replace(
            self._stats, restarts=self._stats.restarts + 1, replays=self._stats.replays + len(requests)
        )

    def _accuse(self, request_ids: Iterable[str] | None) -> list[ReplayableRequest]:
        """The requests in flight whose step ended the core; of a step that nobody knows, all."""
        ids = self._requests if request_ids is None else request_ids
        suspects = [self._requests[request_id] for request_id in ids if request_id in self._requests]
        for request in suspects:
            request.num_deaths += 1
        return suspects

    def _convict(self, suspects: Sequence[ReplayableRequest]) -> None:
        """End a request that was alone in the step that ended a core, and has ended one before."""
        if len(suspects) != 1 or suspects[0].num_deaths < DEATHS_OF_THE_GUILTY:
            return
        request_id = suspects[0].request.request_id
        del self._requests[request_id]
        self._attempts = 0
        self._stats = msgspec.structs.replace(self._stats, convictions=self._stats.convictions + 1)
        logger.error("Request %s ends with an error: the engine core ended twice while it computed it", request_id)
        ends = failed_outputs(suspects[0].request, "the engine ended twice while it computed this request")
        self._outputs.put(EngineCoreOutputs(outputs=ends, incarnation=OWN_WORDS))

    def _die(self, cause: str) -> None:
        with self._lock:
            if self._death is None:
                self._death = EngineDeadError(cause)
                self._state = EngineState.DEAD
            self._requests.clear()
        self._outputs.put(None)


def supervised(config: EngineConfig, first: CoreProcess | None = None) -> Supervisor:
    """Start a core for ``config`` in a background process (``first`` if given), supervised as it says."""
    policy = config.supervision

    def start(incarnation: int, outputs: OutputQueue) -> ProcessClient:
        core = None if incarnation else first
        return ProcessClient(config, incarnation=incarnation, outputs=outputs, wait=False, core=core)

    return Supervisor(
        start,
        max_restarts=policy.max_engine_restarts if policy.on_engine_death == "restart" else 0,
        stuck_timeout_s=policy.engine_stuck_timeout,
    )
