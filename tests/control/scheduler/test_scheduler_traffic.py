"""The scheduler under random traffic: nothing leaks, nobody starves, budgets hold, whatever comes in what order."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import Request
from octavo.control.scheduler.roster import Roster
from octavo.control.scheduler.scheduler import Scheduler
from octavo.executor.simulated import InconsistentStep
from tests.control.scheduler.traffic import Seen, Setting, Traffic, random_run

SETTINGS = [
    Setting(),
    Setting(steps_in_flight=2),
    Setting(with_window=True, num_usable_blocks=20),
    Setting(with_window=True, num_usable_blocks=20, steps_in_flight=2),
    Setting(policy="priority"),
    Setting(policy="priority", steps_in_flight=2),
    Setting(with_drafts=True),
    Setting(with_drafts=True, with_window=True, num_usable_blocks=24, steps_in_flight=2, policy="priority"),
    Setting(chunked=False, budget=24, watermark=0.1),
    Setting(long_prefill_token_threshold=5, max_num_seqs=6, with_drafts=True, steps_in_flight=2),
    Setting(budget=3, max_num_seqs=6),
    Setting(budget=1, max_num_seqs=1),
    Setting(steps_in_flight=3, budget=9, max_num_seqs=8),
    Setting(steps_at_once=8),
    Setting(steps_at_once=5, steps_in_flight=2, policy="priority"),
    Setting(steps_at_once=12, with_window=True, num_usable_blocks=20),
    Setting(steps_at_once=12, budget=3, max_num_seqs=3, watermark=0.1),
]


class TrafficMachine(RuleBasedStateMachine):
    """Hypothesis chooses the setting and the moves, and looks for a short way to a failure."""

    traffic: Traffic
    seen = Seen()

    @initialize(setting=st.sampled_from([setting for setting in SETTINGS if not setting.with_window]))
    def start(self, setting: Setting) -> None:
        self.open(setting)

    def open(self, setting: Setting) -> None:
        """Begin with what is hard, whatever follows: alike long requests that fight for the cache, and an abort."""
        self.traffic = Traffic(setting)
        for _ in range(5):
            self.traffic.add(family=0, num_prompt=24, max_tokens=30)
        self.traffic.abort(0)

    @rule(
        family=st.integers(0, 1),
        num_prompt=st.integers(1, 46),
        max_tokens=st.integers(1, 40),
        priority=st.integers(0, 2),
        logprobs=st.booleans(),
    )
    def add(self, family: int, num_prompt: int, max_tokens: int, priority: int, logprobs: bool) -> None:
        self.traffic.add(
            family=family, num_prompt=num_prompt, max_tokens=max_tokens, priority=priority, logprobs=logprobs
        )

    @precondition(lambda self: len(self.traffic.plane.in_flight) < self.traffic.setting.steps_in_flight)
    @rule()
    def schedule(self) -> None:
        self.traffic.schedule()

    @precondition(lambda self: self.traffic.plane.in_flight)
    @rule()
    def update(self) -> None:
        self.traffic.update()

    @rule(times=st.integers(1, 12))
    def advance(self, times: int) -> None:
        for _ in range(times):
            self.traffic.advance()

    @precondition(lambda self: self.traffic.arrivals)
    @rule(index=st.integers(0, 100))
    def abort(self, index: int) -> None:
        self.traffic.abort(index)

    @rule(index=st.integers(0, 7))
    def fail(self, index: int) -> None:
        self.traffic.fail(index)

    @rule()
    def reset_cache(self) -> None:
        self.traffic.reset_cache()

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.finish()
            seen = type(self).seen
            seen += self.traffic.seen


class WindowTrafficMachine(TrafficMachine):
    """The same over a full and a sliding-window group."""

    seen = Seen()

    @initialize(setting=st.sampled_from([setting for setting in SETTINGS if setting.with_window]))
    def start(self, setting: Setting) -> None:
        self.open(setting)


MOVES = settings(max_examples=40, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TrafficMachine.TestCase.settings = MOVES
WindowTrafficMachine.TestCase.settings = MOVES


class TestTraffic(TrafficMachine.TestCase):
    """Runs the machine. A run that does not get to what is hard has shown nothing."""

    @classmethod
    def tearDownClass(cls) -> None:
        seen = TrafficMachine.seen
        assert seen.steps > 1_000
        assert min(seen.preemptions, seen.hit_tokens, seen.aborts) > 0, seen


class TestWindowTraffic(WindowTrafficMachine.TestCase):
    """Runs the machine with windows."""

    @classmethod
    def tearDownClass(cls) -> None:
        seen = WindowTrafficMachine.seen
        assert seen.steps > 1_000
        assert min(seen.preemptions, seen.hit_tokens, seen.aborts, seen.window_blocks_given_back) > 0, seen


def test_thousands_of_steps_of_fixed_traffic_show_everything_that_can_happen():
    seen = Seen()
    for number, setting in enumerate(SETTINGS):
        seen_here = random_run(Traffic(setting), random.Random(number), num_moves=500)
        assert seen_here.finished > 0, setting
        seen += seen_here
    assert seen.steps > 5_000
    assert seen.preemptions > 100
    assert seen.hit_tokens > 1_000
    assert seen.aborts > 50
    assert seen.window_blocks_given_back > 100
    assert 0 < seen.accepted_drafts < seen.drafts
    assert seen.failed > 10
    assert seen.burst_steps > 200


@pytest.mark.parametrize("setting", SETTINGS[:8])
def test_every_setting_preempts_and_hits(setting: Setting):
    seen = random_run(Traffic(setting), random.Random(77), num_moves=400)
    assert seen.preemptions > 0
    assert seen.hit_tokens > 0


class LeakyKVCacheManager(KVCacheManager):
    """Forgets one of the blocks that it should give back, once."""

    num_frees = 0

    def free(self, request: Request) -> None:
        super().free(request)
        self.num_frees += 1
        if self.num_frees == 20:
            self._pool.allocate(1)


@pytest.mark.parametrize("setting", SETTINGS[:6])
def test_a_planted_leak_is_found(setting: Setting):
    traffic = Traffic(setting, manager=LeakyKVCacheManager)
    with pytest.raises(AssertionError, match="leak: a block is neither held nor free"):
        random_run(traffic, random.Random(5), num_moves=500)


class HastyRoster(Roster):
    """Frees the blocks of ended requests at once, though steps in flight still write to them."""

    def is_in_flight(self, request: Request) -> bool:
        return False


def test_blocks_freed_too_early_are_found():
    traffic = Traffic(Setting(steps_in_flight=2))
    limits, kv_cache = traffic.plane.limits, traffic.plane.kv_cache
    traffic.plane.scheduler = Scheduler(limits, kv_cache, roster=HastyRoster(kv_cache, limits.policy))
    with pytest.raises(InconsistentStep, match=r"which has ended but is in flight, was given to"):
        random_run(traffic, random.Random(3), num_moves=500)
