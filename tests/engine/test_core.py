from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from octavo.control.kv.block_hash import make_block_hasher
from octavo.control.request import Request
from octavo.control.scheduler.quarantine import WITNESS
from octavo.control.structured_output.manager import NoStructuredOutput, StructuredOutput
from octavo.engine.core import CALL_RESULTS, EngineCore
from octavo.engine.step_watch import NoStepWatch, StepWatch
from octavo.executor.simulated import SimulatedExecutor
from octavo.words.errors import UnknownOptionError
from octavo.words.messages import EngineCoreOutput, FinishReason, GrammarMasks, ModelRunnerOutput, SchedulerOutput
from tests.fakes import ControlPlane, FakeGate, counting_token, make_message

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


class ObservedExecutor(SimulatedExecutor):
    """Writes down its calls, and runs ``before_sample`` while a step is in flight."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.calls: list[str] = []
        self.before_sample: Callable[[], None] = lambda: None

    def execute(self, step: SchedulerOutput) -> Any:
        self.calls.append(f"execute {step.step_id}")
        return super().execute(step)

    def sample(self, handle: Any, grammar_masks: Any = None) -> ModelRunnerOutput:
        self.before_sample()
        output = super().sample(handle, grammar_masks)
        self.calls.append(f"sample {output.step_id}")
        return output


def make_core(
    depth: int = 1,
    *,
    executor_class: type[ObservedExecutor] = ObservedExecutor,
    watch: StepWatch | None = None,
    structured_output: StructuredOutput | None = None,
    **limits: Any,
) -> EngineCore:
    plane = ControlPlane(max_steps_in_flight=depth, **limits)
    executor = executor_class(plane.executor.get_kv_cache_specs(), next_token=counting_token, max_steps_in_flight=depth)
    executor.initialize_from_config(plane.config)
    hasher = make_block_hasher(plane.config.hash_block_size)
    options: dict[str, Any] = {"depth": depth, "watch": watch, "structured_output": structured_output}
    return EngineCore(executor, plane.scheduler, hasher, incarnation=3, **options)


def executor_of(core: EngineCore) -> ObservedExecutor:
    assert isinstance(core.executor, ObservedExecutor)
    return core.executor


def run(core: EngineCore, *, most_steps: int = 1000) -> dict[str, list[EngineCoreOutput]]:
    """Step until nothing is left to do; the outputs of each request in order."""
    found: dict[str, list[EngineCoreOutput]] = {}
    for _ in range(most_steps):
        if not core.has_work:
            return found
        for outputs in core.step().values():
            for output in outputs.outputs:
                found.setdefault(output.request_id, []).append(output)
    raise AssertionError("the core never comes to rest")


def test_a_profile_tells_what_each_step_had_to_do() -> None:
    core = make_core()
    core.add_request(make_message("a", 4, max_tokens=2))
    run(core)
    core.call("start_profile")
    core.add_request(make_message("b", 5, max_tokens=2))
    core.add_request(make_message("c", 3, max_tokens=3))
    run(core)
    spans = core.call("stop_profile")
    requests = [span.facts["requests"] for span in spans if span.name == "schedule" and span.facts["requests"]]
    assert requests == [[[0, 5], [0, 3]], [[5, 1], [3, 1]], [[4, 1]]]
    rows = [span.facts["logit_rows"] for span in spans if span.name == "sample"]
    assert rows[:3] == [2, 2, 1]
    run(core)
    assert core.call("stop_profile") == []


def tokens_of(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


@DEPTHS
def test_requests_run_to_their_end(depth: int) -> None:
    core = make_core(depth)
    core.add_request(make_message("a", 4, max_tokens=3))
    core.add_request(make_message("b", 30, max_tokens=5))
    found = run(core)
    assert tokens_of(found["a"]) == [104, 105, 106]
    assert tokens_of(found["b"]) == [130, 131, 132, 133, 134]
    assert {outputs[-1].finish_reason for outputs in found.values()} == {FinishReason.LENGTH}
    stats = core.call("stats")
    assert (stats.kv_cache_usage, stats.num_running, stats.num_waiting) == (0.0, 0, 0)


@pytest.mark.parametrize(
    ("depth", "order"),
    [
        (1, ["execute 1", "sample 1", "execute 2", "sample 2", "execute 3"]),
        (2, ["execute 1", "execute 2", "sample 1", "execute 3", "sample 2"]),
    ],
)
def test_depth_is_the_number_of_steps_in_flight(depth: int, order: list[str]) -> None:
    core = make_core(depth)
    core.add_request(make_message("a", 4, max_tokens=8, ignore_eos=True))
    run(core)
    assert executor_of(core).calls[:5] == order


class MasksBeside(NoStructuredOutput):
    """Their masks are done only after their step was launched; that of request "bad" fails in the second step."""

    def __init__(self) -> None:
        self.launched = threading.Event()
        self.pool = ThreadPoolExecutor(1)

    def begin_masks(self, step: SchedulerOutput, requests: Mapping[str, Request]) -> Future[GrammarMasks] | None:
        self.launched.clear()
        return self.pool.submit(self._masks, [each for each in ("bad",) if each in requests and step.step_id > 1])

    def _masks(self, failing: list[str]) -> GrammarMasks:
        assert self.launched.wait(10), "a step waits for its masks before it is launched"
        return GrammarMasks({}, 1, b"", dict.fromkeys(failing, "too many states"))


class LaunchingExecutor(ObservedExecutor):
    masks: MasksBeside

    def execute(self, step: SchedulerOutput) -> Any:
        handle = super().execute(step)
        self.masks.launched.set()
        return handle


def test_masks_are_made_while_their_step_computes_and_a_grammar_that_fails_is_its_requests_fault() -> None:
    masks = MasksBeside()
    core = make_core(executor_class=LaunchingExecutor, structured_output=masks)
    core.executor.masks = masks  # type: ignore[attr-defined]
    for name in ("good", "bad"):
        core.add_request(make_message(name, 4, max_tokens=3))
    found = run(core)
    masks.pool.shutdown()
    assert tokens_of(found["good"]) == [104, 105, 106]
    last = found["bad"][-1]
    assert (last.finish_reason, last.error, last.is_refused) == (FinishReason.ERROR, "too many states", True)


@DEPTHS
def test_an_abort_that_comes_while_a_step_runs_wins_over_its_tokens(depth: int) -> None:
    core = make_core(depth)
    core.add_request(make_message("a", 4, max_tokens=8))
    core.add_request(make_message("b", 4, max_tokens=8))
    core.step()

    executor_of(core).before_sample = lambda: core.abort_soon(["a"])
    found = run(core)
    assert "a" not in found
    assert found["b"][-1].finish_reason is FinishReason.LENGTH
    assert core.call("stats").kv_cache_usage == 0.0


@DEPTHS
def test_aborted_requests_bring_no_more_outputs_and_free_everything(depth: int) -> None:
    core = make_core(depth)
    for name in ("a", "b", "c"):
        core.add_request(make_message(name, 40, max_tokens=50))
    for _ in range(3):
        core.step()
    core.abort_requests(["a", "unknown", "c", "a"])
    found = run(core)
    assert set(found) == {"b"}
    assert core.call("stats").kv_cache_usage == 0.0
    assert core.call("reset_prefix_cache") is True


def test_a_request_that_cannot_be_hashed_fails_alone() -> None:
    core = make_core()
    core.add_request(make_message("good", 4, max_tokens=2))
    core.add_request(make_message("bad", [2**64] * 16, max_tokens=2))
    found = run(core)
    assert tokens_of(found["good"]) == [104, 105]
    [output] = found["bad"]
    assert output.finish_reason is FinishReason.ERROR
    assert output.error is not None and output.error.startswith("OverflowError: ")


def test_a_second_request_with_an_id_in_use_is_answered_with_an_error() -> None:
    core = make_core()
    core.add_request(make_message("a", 4, max_tokens=2))
    core.add_request(make_message("a", 4, max_tokens=2))
    [first] = core.step()[0].outputs[-1:]
    assert first.finish_reason is FinishReason.ERROR
    assert first.error is not None and "in use" in first.error


def test_outputs_carry_incarnation_and_stats_and_go_to_their_client() -> None:
    core = make_core()
    mine, other = make_message("a", 4, max_tokens=1), make_message("b", 4, max_tokens=1)
    other.client_index = 1
    core.add_request(mine)
    core.add_request(other)
    outputs = core.step()
    assert {index: found.outputs[0].request_id for index, found in outputs.items()} == {0: "a", 1: "b"}
    assert {found.incarnation for found in outputs.values()} == {3}
    stats = outputs[0].stats
    assert stats is not None and stats.num_generation_tokens == 2


class PoisonedExecutor(ObservedExecutor):
    """Fails whenever a step holds one of ``poison``; ``failures`` are the requests of the steps that failed.

    ``lasting``: the device is gone for all who come after.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.poison: set[str] = set()
        self.fail_in_sample = False
        self.lasting = self.is_gone = False
        self.failures: list[list[str]] = []

    def execute(self, step: SchedulerOutput) -> Any:
        handle = super().execute(step)
        if not self.fail_in_sample:
            self.fail_if_poisoned(list(step.num_scheduled_tokens))
        return handle

    def sample(self, handle: Any, grammar_masks: Any = None) -> ModelRunnerOutput:
        output = super().sample(handle, grammar_masks)
        if self.fail_in_sample:
            self.fail_if_poisoned(output.request_ids)
        return output

    def fail_if_poisoned(self, request_ids: list[str]) -> None:
        if self.is_gone or self.poison.intersection(request_ids):
            self.is_gone = self.lasting
            self.failures.append(request_ids)
            raise RuntimeError("the device is gone")


def poisoned_core(
    depth: int = 1, *poison: str, fail_in_sample: bool = False, lasting: bool = False, **options: Any
) -> EngineCore:
    core = make_core(depth, executor_class=PoisonedExecutor, **options)
    executor = core.executor
    assert isinstance(executor, PoisonedExecutor)
    executor.poison, executor.fail_in_sample, executor.lasting = set(poison), fail_in_sample, lasting
    return core


def failures_of(core: EngineCore) -> list[list[str]]:
    assert isinstance(core.executor, PoisonedExecutor)
    return core.executor.failures


@DEPTHS
@pytest.mark.parametrize("fail_in_sample", [False, True])
@pytest.mark.parametrize("enable_caching", [False, True])
def test_a_request_whose_step_fails_again_when_alone_ends_with_an_error_and_nobody_else_notices(
    depth: int, fail_in_sample: bool, enable_caching: bool
) -> None:
    plain, core = make_core(depth), poisoned_core(depth, fail_in_sample=fail_in_sample, enable_caching=enable_caching)
    for each in (plain, core):
        for number in range(4):
            each.add_request(make_message(f"r{number}", 20 + number, max_tokens=12))
    expected = {name: tokens_of(outputs) for name, outputs in run(plain).items()}
    found: dict[str, list[EngineCoreOutput]] = {}
    for step in range(1000):
        if not core.has_work:
            break
        if step == 4:
            core.add_request(make_message("bad", 17, max_tokens=5))
            executor_of(core).poison = {"bad"}  # type: ignore[attr-defined]
        for outputs in core.step().values():
            for output in outputs.outputs:
                found.setdefault(output.request_id, []).append(output)
    assert {name: tokens_of(outputs) for name, outputs in found.items() if name != "bad"} == expected
    assert found["bad"][-1].finish_reason is FinishReason.ERROR
    assert found["bad"][-1].error == (
        "the engine failed twice while it computed this request: RuntimeError: the device is gone"
    )
    assert [len(ids) for ids in failures_of(core)] == [5, 1]
    stats = core.call("stats")
    assert (stats.kv_cache_usage, stats.num_running, stats.num_waiting) == (0.0, 0, 0)
    assert stats.num_preemptions == 0
    assert stats.num_prompt_tokens == 20 + 21 + 22 + 23 + 17


def test_a_step_that_fails_once_costs_nobody_anything() -> None:
    core = poisoned_core(1, "a")
    core.add_request(make_message("a", 4, max_tokens=3))
    core.add_request(make_message("b", 4, max_tokens=3))
    assert core.step() == {}
    executor_of(core).poison.clear()  # type: ignore[attr-defined]
    found = run(core)
    assert [tokens_of(found[name]) for name in ("a", "b")] == [[104, 105, 106]] * 2
    assert len(failures_of(core)) == 1


def test_blocks_that_a_failed_step_was_to_fill_are_not_offered_to_others() -> None:
    core = poisoned_core(1, "bad")
    core.add_request(make_message("good", range(40), max_tokens=1))
    run(core)
    bad = [*range(32), *range(900, 940)]
    core.add_request(make_message("bad", bad, max_tokens=1))
    assert run(core)["bad"][-1].finish_reason is FinishReason.ERROR
    core.add_request(make_message("later", bad, max_tokens=1))
    assert run(core)["later"][-1].num_cached_tokens == 32


@DEPTHS
@pytest.mark.parametrize("names", ["a", "abc"])
def test_where_nothing_can_be_computed_any_more_the_engine_is_to_blame_and_the_error_is_raised(
    depth: int, names: str
) -> None:
    core = poisoned_core(depth, "a", lasting=True)
    for name in names:
        core.add_request(make_message(name))
    with pytest.raises(RuntimeError, match="the device is gone"):
        run(core)
    assert failures_of(core) == [list(names), ["a"], [WITNESS]]


@DEPTHS
def test_any_number_of_poisoned_requests_end_with_errors_while_the_engine_can_compute_others(depth: int) -> None:
    core = poisoned_core(depth, *"abcde")
    for name in "abc":
        core.add_request(make_message(name))
    found = run(core)
    for name in "de":
        core.add_request(make_message(name))
        found |= run(core)
    core.add_request(make_message("good", max_tokens=2))
    assert tokens_of(run(core)["good"]) == [104, 105]
    assert list(found) == list("abcde"), "nobody is told of the witness"
    assert {outputs[-1].finish_reason for outputs in found.values()} == {FinishReason.ERROR}
    stats = core.call("stats")
    assert (stats.kv_cache_usage, stats.num_running, stats.num_waiting) == (0.0, 0, 0)


class NotedWatch(NoStepWatch):
    """Whom a core would be taken to have ended for, at each step."""

    def __init__(self) -> None:
        self.blamed: list[list[str]] = []

    def launched(self, step: SchedulerOutput) -> None:
        self.blamed.append(list(step.num_scheduled_tokens))

    def blame(self, request_ids: Sequence[str]) -> None:
        self.blamed[-1] = list(request_ids)


def test_a_core_that_ends_while_the_witness_is_heard_ends_for_the_accused() -> None:
    watch = NotedWatch()
    core = poisoned_core(1, "a", lasting=True, watch=watch)
    core.add_request(make_message("a"))
    core.add_request(make_message("b"))
    with pytest.raises(RuntimeError, match="the device is gone"):
        run(core)
    assert watch.blamed == [["a", "b"], ["a"], ["a"]]


def test_suspects_of_an_engine_that_was_started_again_are_to_blame_themselves() -> None:
    core = poisoned_core(1, "a", "b")
    for name in ("a", "b"):
        message = make_message(name)
        message.is_suspect = True
        core.add_request(message)
    core.add_request(make_message("c", max_tokens=2))
    found = run(core)
    assert found["a"][-1].finish_reason is found["b"][-1].finish_reason is FinishReason.ERROR
    assert tokens_of(found["c"]) == [104, 105]
    assert failures_of(core) == [["a"], ["b"]], "each alone from the start"


def test_a_suspect_that_is_aborted_holds_back_nobody() -> None:
    core = poisoned_core(1, "a")
    for name in ("a", "b", "c"):
        core.add_request(make_message(name, max_tokens=2))
    core.step()
    core.abort_requests(["a", "b"])
    assert tokens_of(run(core)["c"]) == [104, 105]
    core.add_request(make_message("d", max_tokens=2))
    assert tokens_of(run(core)["d"]) == [104, 105]


def test_requests_aborted_while_a_step_that_fails_is_in_flight_give_back_their_blocks() -> None:
    core = poisoned_core(2, "b", fail_in_sample=True)
    for name in ("a", "b", "c"):
        core.add_request(make_message(name, 40, max_tokens=4))
    executor_of(core).before_sample = lambda: core.abort_requests(["a"])
    found = run(core)
    assert "a" not in found
    assert tokens_of(found["c"]) == [140, 141, 142, 143]
    assert core.call("stats").kv_cache_usage == 0.0


@DEPTHS
@pytest.mark.parametrize("num_cut", [1, 2, 5, 11])
def test_a_replay_goes_on_as_if_nothing_had_happened(depth: int, num_cut: int) -> None:
    plain, core = make_core(depth), make_core(depth)
    whole = make_message("a", 30, max_tokens=12)
    plain.add_request(whole)
    [outputs] = run(plain).values()
    replay = make_message("a", 30, max_tokens=12, output_token_ids=tokens_of(outputs)[:num_cut])
    replay.num_cached_tokens, replay.first_scheduled_time, replay.num_preemptions = 16, 5.0, 2
    core.add_request(replay)
    [rest] = run(core).values()
    assert tokens_of(rest) == tokens_of(outputs)[num_cut:]
    assert rest[-1].finish_reason is outputs[-1].finish_reason
    assert (rest[0].num_cached_tokens, rest[0].first_scheduled_time, rest[0].num_preemptions) == (16, 5.0, 2)
    stats = core.call("stats")
    assert (stats.num_prompt_tokens, stats.prefix_cache_queries) == (0, 0), "the first core has counted these"


def test_a_gated_request_keeps_the_core_at_work_and_starts_when_released() -> None:
    gate = FakeGate("a")
    core = make_core(gates=(gate,))
    core.add_request(make_message("a", 4, max_tokens=1))
    for _ in range(3):
        assert core.step() == {}
    assert core.has_work
    gate.held.clear()
    assert tokens_of(run(core)["a"]) == [104]


def test_every_call_has_a_stated_answer_and_others_are_refused() -> None:
    core = make_core()
    assert set(core._calls) == set(CALL_RESULTS)
    with pytest.raises(UnknownOptionError, match="'shutdown'"):
        core.call("shutdown")


@DEPTHS
def test_three_hundred_mixed_requests_leave_every_block_free(depth: int) -> None:
    """Case PC12."""
    rng = random.Random(depth)
    core = make_core(depth, num_blocks=20, max_num_seqs=8)
    scheduler = core.scheduler
    num_preemptions = num_aborted = 0
    for number in range(300):
        prompt = rng.choice([1, 5, 40, 100, 500])  # 500 can never run
        core.add_request(make_message(f"r{number}", prompt, max_tokens=rng.randrange(1, 40)))
        if core.has_work:
            core.step()
        if rng.random() < 0.3 and scheduler.requests:
            core.abort_soon([rng.choice(list(scheduler.requests))])
            num_aborted += 1
    run(core, most_steps=20_000)
    stats = core.call("stats")
    num_preemptions = stats.num_preemptions
    assert num_preemptions > 0 and num_aborted > 20
    assert (stats.kv_cache_usage, stats.num_running, stats.num_waiting) == (0.0, 0, 0)
    assert scheduler.kv_cache.num_free_blocks == 19
    assert not scheduler.requests
