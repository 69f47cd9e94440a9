"""Case PC08 on a virtual clock: streams go on while a long prompt is prefilled."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from octavo.control.kv.manager import KVCacheManager
from octavo.control.kv.planning import KVCacheLimits, RankNeeds, plan_kv_cache
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.scheduler import Scheduler
from octavo.engine.core import EngineCore
from octavo.executor.simulated import SimulatedExecutor
from octavo.words.messages import SchedulerOutput
from tests.fakes import counting_token, full_attention, make_message

BUDGET_S = 0.150
MAX_MODEL_LEN = 8_192
LONG_PROMPT = 6_000
NUM_STREAMS = 8


class VirtualClock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Machine:
    """A CPU: decodes wait for the weights, prompt tokens for arithmetic, all for the tokens before them."""

    slowdown: Callable[[int], float] = lambda step_id: 1.0
    contexts: dict[str, int] = field(default_factory=dict)

    def seconds(self, step: SchedulerOutput) -> float:
        for new in step.new_requests:
            self.contexts[new.request_id] = new.num_computed_tokens
        spent = 0.008 if step.num_scheduled_tokens else 0.0
        for request_id, num_tokens in step.num_scheduled_tokens.items():
            context = self.contexts[request_id]
            spent += num_tokens * 0.0009 + 5e-7 * num_tokens * (context + num_tokens / 2)
            self.contexts[request_id] = context + num_tokens
        return spent * self.slowdown(step.step_id)


@dataclass
class Run:
    """What the streams saw while the long prompt was there, and how long that took."""

    gaps: list[float]
    first_token_s: float
    num_cuts: int

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.gaps, n=100)[-1]


def run(max_step_seconds: float, machine: Machine | None = None) -> Run:
    clock, machine = VirtualClock(), machine or Machine()
    core = make_core(max_step_seconds, clock, machine)
    for number in range(NUM_STREAMS):
        core.add_request(make_message(f"stream-{number}", 40, max_tokens=2_000, ignore_eos=True))
    for _ in range(30):
        core.step()
    began = clock.now
    core.add_request(make_message("long", LONG_PROMPT, max_tokens=1, ignore_eos=True))
    last = {f"stream-{number}": began for number in range(NUM_STREAMS)}
    gaps: list[float] = []
    for _ in range(1_000):
        outputs = [output for batch in core.step().values() for output in batch.outputs]
        for output in outputs:
            if output.request_id in last:
                gaps.append(clock.now - last[output.request_id])
                last[output.request_id] = clock.now
        if any(output.request_id == "long" for output in outputs):
            limit = core.scheduler.token_limits[-1]
            return Run(gaps, clock.now - began, getattr(limit, "num_cuts", 0))
    raise AssertionError("the long prompt starved")


def make_core(max_step_seconds: float, clock: VirtualClock, machine: Machine) -> EngineCore:
    limits = SchedulerLimits(
        max_num_seqs=16,
        max_num_batched_tokens=2_048,
        max_model_len=MAX_MODEL_LEN,
        max_step_seconds=max_step_seconds,
    )
    specs = {"layer": full_attention()}
    cache_limits = KVCacheLimits(
        max_model_len=MAX_MODEL_LEN,
        model_max_len=MAX_MODEL_LEN,
        max_num_batched_tokens=limits.max_num_batched_tokens,
    )
    config = plan_kv_cache(RankNeeds(specs=specs, available_bytes=1 << 20), cache_limits)
    executor = SimulatedExecutor(specs, step_seconds=machine.seconds, next_token=counting_token, check=False)
    executor.clock = clock
    executor.initialize_from_config(config)
    manager = KVCacheManager(config, enable_caching=False, max_num_batched_tokens=limits.max_num_batched_tokens)
    return EngineCore(executor, Scheduler(limits, manager), None, clock=clock.monotonic)


def test_gaps_stay_within_the_budget_while_a_long_prompt_is_prefilled() -> None:
    result = run(BUDGET_S)
    assert result.p99 <= BUDGET_S * 1.2
    assert max(result.gaps) <= 2 * BUDGET_S
    assert result.num_cuts > 10


def test_without_a_budget_the_streams_stand_still() -> None:
    result = run(0.0)
    assert result.p99 > 5 * BUDGET_S
    assert result.num_cuts == 0


def test_the_time_is_used_the_long_prompt_waits_little_longer() -> None:
    assert run(BUDGET_S).first_token_s < 1.25 * run(0.0).first_token_s


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_machine_that_changes_its_pace_is_followed(factor: float) -> None:
    result = run(BUDGET_S, Machine(slowdown=lambda step_id: 1.0 if step_id < 45 else factor))
    assert result.p99 <= 2 * BUDGET_S


def test_a_budget_less_than_the_decodes_take_starves_nobody() -> None:
    result = run(0.001)
    assert len(result.gaps) >= LONG_PROMPT / 16


def test_a_lone_prompt_takes_the_largest_steps() -> None:
    clock, machine = VirtualClock(), Machine()
    core = make_core(BUDGET_S, clock, machine)
    core.add_request(make_message("long", LONG_PROMPT, max_tokens=1, ignore_eos=True))
    num_steps = 0
    while core.has_work:
        core.step()
        num_steps += 1
    assert num_steps == 4  # three steps of at most 2,048 tokens, and one that tells of the end
