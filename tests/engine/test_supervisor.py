"""The supervisor over fake cores, which do what they are told and end when they are told to."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pytest

from octavo.engine.metric import Gauge
from octavo.engine.process_client import OutputQueue
from octavo.engine.step_watch import SharedStepWatch, StepWatchPage
from octavo.engine.supervisor import EngineState, Supervisor
from octavo.words.errors import EngineDeadError, EngineError, EngineStartError
from octavo.words.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SchedulerOutput,
    SchedulerStats,
)
from tests import waiting
from tests.fakes import make_message

soon = partial(waiting.soon, seconds=10.0)


class FakeCore:
    """A ProcessClient without a process. ``requests`` are those it was given."""

    info: Any = "info"
    pid = 1

    def __init__(self, incarnation: int, outputs: OutputQueue, start_error: str) -> None:
        self.incarnation = incarnation
        self.outputs = outputs
        self.start_error = start_error
        self.requests: dict[str, EngineCoreRequest] = {}
        self.aborted: list[str] = []
        self.watch = StepWatchPage()
        self.steps = SharedStepWatch(self.watch.fd)
        self.cause_of_death: str | None = None
        self.is_stopping = False
        self.num_unanswered_calls = 0
        self.may_be_ready = threading.Event()
        self.may_be_ready.set()
        self._ended = threading.Event()

    def wait_until_ready(self) -> None:
        self.may_be_ready.wait(10)
        if self.start_error or self.is_stopping:
            self.shutdown()
            raise EngineStartError(self.start_error)

    def wait_until_ended(self, timeout_s: float) -> bool:
        return self._ended.wait(timeout_s)

    def check_owner(self) -> None:
        pass

    def add_request(self, request: EngineCoreRequest) -> None:
        self._check_alive()
        self.requests[request.request_id] = request

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._check_alive()
        self.aborted.extend(request_ids)

    def call(self, name: str, *args: Any) -> Any:
        self._check_alive()
        return SchedulerStats(num_steps=7) if name == "stats" else (name, *args)

    def kill(self, reason: str) -> None:
        self.end(reason)

    def shutdown(self) -> None:
        if self.is_stopping:
            return
        self.is_stopping = True
        self.may_be_ready.set()
        self.end("the engine was shut down")
        self.watch.close()

    # What the tests make it do

    def say(self, request_id: str, *token_ids: int, finished: bool = False, num_cached: int = 0) -> None:
        output = EngineCoreOutput(
            request_id=request_id,
            new_token_ids=list(token_ids),
            finish_reason=FinishReason.LENGTH if finished else None,
            num_cached_tokens=num_cached,
            num_preemptions=1,
            first_scheduled_time=3.0,
        )
        stats = SchedulerStats(num_running=1, num_steps=5, num_generation_tokens=len(token_ids))
        self.outputs.put(EngineCoreOutputs(outputs=[output], stats=stats, incarnation=self.incarnation))

    def run(self, *request_ids: str) -> None:
        """Begin a step that does not end."""
        self.steps.launched(SchedulerOutput(step_id=1, num_scheduled_tokens=dict.fromkeys(request_ids, 1)))

    def end(self, cause: str = "it fell over") -> None:
        self.cause_of_death = self.cause_of_death or cause
        self._ended.set()
        self.outputs.put(None)

    def _check_alive(self) -> None:
        if self.cause_of_death is not None:
            raise EngineDeadError(self.cause_of_death)


class Stage:
    """A supervisor and the cores it started so far."""

    def __init__(self, *, max_restarts: int = 3, stuck_timeout_s: float = 60.0) -> None:
        self.cores: list[FakeCore] = []
        self.start_errors: dict[int, str] = {}
        self.hold_start = False
        self.supervisor = Supervisor(self._start, max_restarts=max_restarts, stuck_timeout_s=stuck_timeout_s)

    @property
    def core(self) -> FakeCore:
        return self.cores[-1]

    def _start(self, incarnation: int, outputs: OutputQueue) -> Any:
        core = FakeCore(incarnation, outputs, self.start_errors.get(len(self.cores), ""))
        if self.hold_start:
            core.may_be_ready.clear()
        self.cores.append(core)
        return core

    def end_core(self, *, number: int, cause: str = "it fell over") -> FakeCore:
        """End the present core; returns its successor, number ``number``, when it serves."""
        self.core.end(cause)
        assert soon(lambda: len(self.cores) > number and self.supervisor.state is EngineState.READY)
        return self.core

    def take(self) -> list[tuple[str, list[int], FinishReason | None]]:
        outputs = self.supervisor.get_output()
        assert outputs is not None
        return [(each.request_id, each.new_token_ids, each.finish_reason) for each in outputs.outputs]


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.supervisor.shutdown()


def test_a_request_goes_on_in_the_next_core_from_what_the_front_end_has_taken(stage: Stage) -> None:
    stage.supervisor.add_request(make_message("a", 4, priority=3, arrival_time=1.5))
    stage.core.say("a", 1, 2, num_cached=16)
    assert stage.take() == [("a", [1, 2], None)]
    core = stage.end_core(number=1)
    replay = core.requests["a"]
    assert replay.output_token_ids == [1, 2]
    assert (replay.num_cached_tokens, replay.num_preemptions, replay.first_scheduled_time) == (16, 1, 3.0)
    assert (replay.priority, replay.arrival_time, replay.is_suspect) == (3, 1.5, False)
    core.say("a", 3, finished=True)
    assert stage.take() == [("a", [3], FinishReason.LENGTH)]
    assert stage.end_core(number=2).requests == {}, "it has ended"
    assert (stage.supervisor.stats.restarts, stage.supervisor.stats.replays) == (2, 1)


def test_words_of_a_core_that_ended_are_dropped_once_another_repeats_them(stage: Stage) -> None:
    stage.supervisor.add_request(make_message("a"))
    first = stage.core
    first.say("a", 1)
    core = stage.end_core(number=1)
    assert core.requests["a"].output_token_ids == []
    first.say("a", 2)
    core.say("a", 1)
    assert stage.take() == [("a", [1], None)]
    assert stage.supervisor.get_output(blocking=False) is None


def test_words_of_a_core_that_ended_count_until_another_is_ready(stage: Stage) -> None:
    stage.supervisor.add_request(make_message("a"))
    stage.hold_start = True
    stage.core.say("a", 1)
    stage.core.end()
    assert soon(lambda: len(stage.cores) == 2)
    assert stage.take() == [("a", [1], None)]
    stage.core.may_be_ready.set()
    assert soon(lambda: "a" in stage.core.requests)
    assert stage.core.requests["a"].output_token_ids == [1]


def test_requests_may_come_and_go_while_there_is_no_core(stage: Stage) -> None:
    stage.supervisor.add_request(make_message("goes"))
    stage.supervisor.add_request(make_message("stays"))
    stage.hold_start = True
    stage.core.end()
    assert soon(lambda: len(stage.cores) == 2)
    assert stage.supervisor.state is EngineState.RECOVERING
    stage.supervisor.abort_requests(["goes", "unknown"])
    stage.supervisor.add_request(make_message("comes"))
    for ask in (stage.supervisor.check_health, lambda: stage.supervisor.call("stats")):
        with pytest.raises(EngineError, match="being started again"):
            ask()
    assert stage.supervisor.problem == "the engine core is being started again; ask later"
    assert Gauge("octavo:engine_ready", 0.0) in stage.supervisor.metrics()
    stage.core.may_be_ready.set()
    assert soon(lambda: stage.supervisor.state is EngineState.READY)
    assert stage.supervisor.problem is None
    assert Gauge("octavo:engine_ready", 1.0) in stage.supervisor.metrics()
    assert list(stage.core.requests) == ["stays", "comes"]
    stage.supervisor.check_health()


def test_totals_go_on_where_the_last_core_stopped(stage: Stage) -> None:
    stage.supervisor.add_request(make_message("a"))
    stage.core.say("a", 1, 2)
    stage.take()
    core = stage.end_core(number=1)
    core.say("a", 3)
    outputs = stage.supervisor.get_output()
    assert outputs is not None and outputs.stats is not None
    assert (outputs.stats.num_steps, outputs.stats.num_generation_tokens, outputs.stats.num_running) == (10, 3, 1)
    assert stage.supervisor.call("stats").num_steps == 5 + 7


def test_the_requests_of_the_step_that_ended_a_core_are_suspects_and_come_first(stage: Stage) -> None:
    for name in ("a", "b", "c"):
        stage.supervisor.add_request(make_message(name))
    stage.core.run("b", "c")
    core = stage.end_core(number=1)
    assert [(name, request.is_suspect) for name, request in core.requests.items()] == [
        ("b", True),
        ("c", True),
        ("a", False),
    ]


def test_a_request_that_ends_two_cores_ends_with_an_error_and_the_others_go_on(stage: Stage) -> None:
    for name in ("good", "bad"):
        stage.supervisor.add_request(make_message(name))
    stage.core.run("good", "bad")
    core = stage.end_core(number=1)
    core.say("good", 1)
    assert stage.take() == [("good", [1], None)]
    core.run("bad")
    core = stage.end_core(number=2)
    assert stage.take() == [("bad", [], FinishReason.ERROR)]
    assert list(core.requests) == ["good"]
    assert not core.requests["good"].is_suspect
    assert stage.supervisor.stats.convictions == 1


def test_a_token_clears_a_suspect(stage: Stage) -> None:
    stage.supervisor.add_request(make_message("a"))
    for number in range(1, 6):  # more than the restarts allowed in a row
        stage.core.run("a")
        core = stage.end_core(number=number)
        assert core.requests["a"].is_suspect
        core.say("a", number)
        assert stage.take() == [("a", [number], None)]


def test_after_the_last_attempt_the_engine_is_dead_and_everybody_is_told() -> None:
    stage = Stage(max_restarts=2)
    stage.start_errors = {1: "no memory", 2: "still no memory"}
    stage.supervisor.add_request(make_message("a"))
    stage.core.end()
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="still no memory"):
            stage.supervisor.get_output()
    assert stage.supervisor.state is EngineState.DEAD
    for attempt in (
        lambda: stage.supervisor.add_request(make_message("b")),
        lambda: stage.supervisor.abort_requests(["a"]),
        lambda: stage.supervisor.call("stats"),
        stage.supervisor.check_health,
    ):
        with pytest.raises(EngineDeadError, match="still no memory"):
            attempt()
    assert len(stage.cores) == 3
    stage.supervisor.shutdown()


def test_without_restarts_the_first_death_is_the_last() -> None:
    stage = Stage(max_restarts=0)
    stage.supervisor.add_request(make_message("a"))
    stage.core.end("killed")
    with pytest.raises(EngineDeadError, match="killed"):
        stage.supervisor.get_output()
    assert len(stage.cores) == 1
    stage.supervisor.shutdown()


def test_a_first_core_that_does_not_start_is_an_error_of_the_start() -> None:
    class Failing(Stage):
        def _start(self, incarnation: int, outputs: OutputQueue) -> Any:
            return FakeCore(incarnation, outputs, "no such model")

    with pytest.raises(EngineStartError, match="no such model"):
        Failing()


def test_a_core_that_stands_still_with_work_to_do_is_killed_and_said_to_be_late_before() -> None:
    stage = Stage(stuck_timeout_s=0.4)
    stage.supervisor.check_health()
    stage.supervisor.add_request(make_message("a"))
    assert soon(lambda: stage.supervisor._progress.is_late)
    assert soon(lambda: len(stage.cores) == 2 and stage.supervisor.state is EngineState.READY)
    cause = stage.cores[0].cause_of_death
    assert cause is not None and "made no progress for 0 s with 1 requests in flight" in cause
    stage.supervisor.shutdown()


def test_shutdown_while_a_core_starts_ends_that_core_and_starts_no_other(stage: Stage) -> None:
    stage.hold_start = True
    stage.core.end()
    assert soon(lambda: len(stage.cores) == 2)
    stage.supervisor.shutdown()
    stage.supervisor.shutdown()
    assert stage.core.is_stopping
    with pytest.raises(EngineDeadError, match="was shut down"):
        stage.supervisor.get_output()
    assert len(stage.cores) == 2
    assert stage.supervisor.state is EngineState.STOPPED
