"""Several decode steps at once: how many, and that the books are those of single steps. Blocks hold 16 tokens."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.control.scheduler.adaptive_drafts import STEPS_OF_A_TRY, STEPS_TO_LEARN
from octavo.words.messages import FinishReason, ModelRunnerOutput, SchedulerOutput
from octavo.words.sampling_params import RequestOutputKind
from tests.fakes import EOS, ControlPlane, counting_token

STEP_S = 0.002
FINAL_ONLY = {"output_kind": RequestOutputKind.FINAL_ONLY}


def make_plane(*, steps_at_once: int = 5, **options: Any) -> ControlPlane:
    """Decode steps take 2 ms; the first that is seen tells how long."""
    return timed(ControlPlane(max_burst_seconds=(steps_at_once + 0.5) * STEP_S, **options), STEP_S)


def timed(plane: ControlPlane, step_seconds: float) -> ControlPlane:
    plane.step_seconds = step_seconds
    return plane


def lengths(plane: ControlPlane) -> list[int]:
    return [step.num_decode_steps for step in plane.steps if step.num_scheduled_tokens]


def test_decodes_are_run_as_many_at_once_as_fit_into_the_time():
    plane = make_plane()
    plane.add("a", 4, max_tokens=20)
    plane.run()
    assert plane.token_ids("a") == list(range(104, 124))
    assert lengths(plane) == [1, 1, 5, 5, 5, 3]
    stats = plane.scheduler.stats()
    assert (stats.num_bursts, stats.num_burst_steps) == (4, 18)
    assert stats.num_steps == plane.steps[-1].step_id + 14


def test_none_is_run_before_a_step_was_timed_nor_where_bursts_are_off():
    for plane in (ControlPlane(max_burst_seconds=1.0), timed(ControlPlane(), STEP_S)):
        plane.add("a", 4, max_tokens=9)
        plane.run()
        assert set(lengths(plane)) == {1}


def test_a_slow_model_takes_its_steps_one_by_one():
    plane = timed(ControlPlane(max_burst_seconds=0.025), 0.1)
    plane.add("a", 4, max_tokens=9)
    plane.run()
    assert set(lengths(plane)) == {1}


def test_bursts_are_longer_where_nobody_reads_along():
    plane = make_plane(max_step_seconds=0.04)
    plane.add("a", 4, max_tokens=40, **FINAL_ONLY)
    plane.run()
    assert max(lengths(plane)) == 10
    plane.add("a", 4, max_tokens=40, **FINAL_ONLY)
    plane.add("b", 4, max_tokens=40)
    plane.steps.clear()
    plane.run()
    assert max(lengths(plane)) == 5


def test_sixteen_steps_are_the_most_also_without_a_limit_of_time():
    plane = make_plane()
    plane.add("a", 4, max_tokens=90, **FINAL_ONLY)
    plane.run()
    assert max(lengths(plane)) == 16


def test_a_burst_ends_with_the_first_request_that_must():
    plane = make_plane()
    plane.add("a", 4, max_tokens=5)
    plane.add("b", 4, max_tokens=9)
    plane.run()
    assert lengths(plane) == [1, 1, 3, 4]
    assert (plane.token_ids("a"), plane.token_ids("b")) == (list(range(104, 109)), list(range(104, 113)))


def test_the_context_ends_a_burst():
    plane = make_plane(max_model_len=11)
    plane.add("a", 4, max_tokens=90)
    plane.run()
    assert lengths(plane) == [1, 1, 5]
    assert plane.last_output("a").finish_reason is FinishReason.LENGTH


def in_burst(plane: ControlPlane) -> SchedulerOutput:
    """Step until one of several steps has been decided; its result is not taken yet."""
    for _ in range(9):
        step = plane.schedule()
        if step.num_decode_steps > 1:
            return step
        plane.update()
    raise AssertionError("no burst")


def test_who_comes_in_the_middle_is_let_in_with_the_next_step():
    plane = make_plane()
    plane.add("a", 4, max_tokens=30)
    in_burst(plane)
    plane.add("b", 10, max_tokens=2)
    plane.update()
    step = plane.step()
    assert step.num_scheduled_tokens == {"a": 1, "b": 10}
    assert step.num_decode_steps == 1
    plane.run()
    assert plane.token_ids("a") == list(range(104, 134))


def test_an_abort_in_the_middle_wins_over_the_tokens():
    plane = make_plane()
    plane.add("a", 4, max_tokens=30)
    plane.add("b", 4, max_tokens=30)
    in_burst(plane)
    plane.scheduler.abort_requests(["a"])
    assert [output.request_id for output in plane.update()] == ["b"]
    plane.run()
    assert plane.token_ids("b") == list(range(104, 134))
    assert plane.kv_cache.usage == 0.0


def stops_at(position: int) -> Any:
    return lambda request_id, at: EOS if at == position else counting_token(request_id, at)


def test_what_follows_a_stop_token_is_dropped_and_its_blocks_are_given_back():
    plane = make_plane(steps_at_once=16, next_token=stops_at(40))
    plane.add("a", 20, max_tokens=90)
    plane.run()
    assert plane.token_ids("a") == [*range(120, 140), EOS]
    assert plane.last_output("a").finish_reason is FinishReason.STOP
    assert max(lengths(plane)) > 1
    assert plane.kv_cache.usage == 0.0
    assert plane.scheduler.stats().num_generation_tokens == 21


def test_blocks_filled_in_a_burst_can_be_found_afterwards_and_hold_only_true_tokens():
    plane = make_plane(steps_at_once=16, next_token=stops_at(50))
    request = plane.add("a", 20, max_tokens=90)
    plane.run()
    answer, wrong = plane.token_ids("a"), counting_token("a", 51)
    again = plane.add("b", [*request.prompt_token_ids, *answer, wrong, *range(5000, 5020)], max_tokens=1)
    plane.run()
    assert again.num_cached_tokens == 48


def test_bursts_get_shorter_where_blocks_are_few_and_nobody_is_preempted_for_one():
    plane = make_plane(steps_at_once=16, num_blocks=6)
    plane.add("a", 15, max_tokens=25)
    plane.add("b", 15, max_tokens=25)
    plane.run()
    assert max(lengths(plane)) > 1
    assert plane.token_ids("a") == plane.token_ids("b") == list(range(115, 140))
    single = ControlPlane(num_blocks=6)
    single.add("a", 15, max_tokens=25)
    single.add("b", 15, max_tokens=25)
    single.run()
    assert plane.scheduler.stats().num_preemptions == single.scheduler.stats().num_preemptions


class Allowed:
    def take(self, token_id: int) -> bool:
        return False


def test_what_is_decided_between_steps_keeps_them_single():
    plane = make_plane()
    plane.add("a", 4, max_tokens=9).constraint = Allowed()
    plane.add("b", 4, max_tokens=9)
    plane.run()
    assert set(lengths(plane)) == {1}


def test_where_drafts_are_made_steps_are_single():
    plane = make_plane(next_draft=counting_token, num_draft_tokens=3, num_lookahead_tokens=3)
    plane.add("a", 4, max_tokens=30)
    plane.run()
    assert set(lengths(plane)) == {1}


@pytest.mark.parametrize(
    ("looks_back", "num_asked"), [(True, {0}), (False, {STEPS_TO_LEARN, STEPS_TO_LEARN + STEPS_OF_A_TRY})]
)
def test_where_drafts_are_left_out_steps_are_bursts(looks_back: bool, num_asked: set[int]):
    """Nobody guesses anything here: that is seen in hindsight, or learnt once, and maybe tried again."""
    plane = make_plane(num_draft_tokens=3, num_lookahead_tokens=3, adapt_drafts=True, drafter_looks_back=looks_back)
    plane.add("a", 4, max_tokens=90)
    plane.run()
    bursts = [step for step in plane.steps if step.num_decode_steps > 1]
    assert plane.token_ids("a") == list(range(104, 194))
    assert len(bursts) > 4
    assert sum(bool(step.num_drafts) for step in plane.steps) in num_asked
    assert all(bool(step.num_trial_drafts) == looks_back and not step.num_drafts for step in bursts[:-1])


@pytest.mark.parametrize("num_run", [1, 3])
def test_a_burst_that_stops_early_goes_on_where_it_stopped(num_run: int):
    plane = make_plane()
    request = plane.add("a", 4, max_tokens=30)
    step = in_burst(plane)
    tokens = [counting_token("a", request.num_tokens + number) for number in range(num_run)]
    plane.scheduler.update_from_output(
        step,
        ModelRunnerOutput(
            step_id=step.step_id, request_ids=["a"], sampled_token_ids=[tokens], num_decode_steps=num_run
        ),
    )
    assert request.num_computed_tokens == request.num_tokens - 1
    assert request.num_output_placeholders == 0
    assert plane.scheduler.schedule().cached_requests[0].num_computed_tokens == 6 + num_run - 1
