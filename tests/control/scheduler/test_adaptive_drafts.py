from __future__ import annotations

import pytest

from octavo.control.request import Request
from octavo.control.scheduler.adaptive_drafts import (
    MOST_VAIN_PROBES,
    STEPS_BETWEEN_PLAIN,
    STEPS_BETWEEN_PROBES,
    STEPS_TO_LEARN,
    AdaptiveDrafts,
    DraftCosts,
    best_number,
)
from octavo.control.scheduler.drafts import AllDrafts, DraftCounts
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_time import StepTimeModel
from tests.fakes import make_message

MOST = 8


def step_with(*requests: Request) -> StepBuilder:
    step = StepBuilder(1, token_budget=99, num_eligible=len(requests))
    step.granted += requests
    return step


class Machine:
    """Its steps and its drafter were measured to take this long."""

    def __init__(
        self,
        fixed: float,
        per_token: float,
        *,
        num_streams: int = 1,
        guess: float = 0.0,
        one_by_one: bool = False,
        read: float | None = None,
    ) -> None:
        times = StepTimeModel()
        for _ in range(50):
            for num_tokens in (1, 9):
                times.observe(StepLoad(num_decode_tokens=num_tokens), fixed + per_token * num_tokens)
        self.counts = DraftCounts()
        self.limit = AdaptiveDrafts(
            MOST, self.counts, times, lambda: num_streams, one_by_one=one_by_one, catches_up=read is not None
        )
        for _ in range(50):
            self.limit.observe(StepLoad(num_decode_tokens=1, num_drafts=MOST), guess * (MOST if one_by_one else 1))
        self.limit.observe(StepLoad(num_prefill_tokens=100, num_unread=100), guess + 100 * (read or 0.0))

    def request(self, num_right: int = MOST, of: int = MOST, steps: int = 200) -> Request:
        """A request so many of whose drafts were right in each step."""
        request = Request(make_message("a", [1]))
        request.max_total_tokens = 10_000
        for _ in range(steps):
            self.counts.observe(request, of, num_right)
        return request

    def num_drafts(self, request: Request) -> int:
        return self.limit(step_with(request)).get("a", 0)


def test_where_the_weights_take_the_time_right_drafts_are_free() -> None:
    machine = Machine(1.0, 0.01)
    assert machine.num_drafts(machine.request()) == MOST


def test_wrong_drafts_are_left_out() -> None:
    machine = Machine(1.0, 0.5)
    assert machine.num_drafts(machine.request(num_right=0)) == 0


def test_drafts_that_are_sometimes_right_are_shortened() -> None:
    machine = Machine(1.0, 0.2)
    assert 0 < machine.num_drafts(machine.request(num_right=1)) < MOST


def test_drafts_that_promise_next_to_nothing_are_left_out() -> None:
    costs = DraftCosts(token=1.5, verified=0.5, guessing=0.0, guessed=0.0)
    assert [best_number(right, MOST, costs).number for right in (0.3, 0.36, 0.45)] == [0, 0, 1]


def test_many_streams_share_the_weights_so_a_draft_saves_less() -> None:
    alone, together = (Machine(1.0, 0.2, num_streams=n) for n in (1, 64))
    assert alone.num_drafts(alone.request(num_right=1)) > together.num_drafts(together.request(num_right=1))


def test_a_drafter_that_takes_as_long_as_the_model_is_left_out_however_right_it_is() -> None:
    slow, fast = (Machine(1.0, 0.01, guess=seconds, one_by_one=True) for seconds in (1.1, 0.1))
    assert slow.num_drafts(slow.request()) == 0
    assert fast.num_drafts(fast.request()) > 0


def test_a_drafter_that_guesses_all_at_once_is_asked_for_many_or_none() -> None:
    machine = Machine(1.0, 0.01, guess=2.0)
    assert machine.num_drafts(machine.request()) == MOST
    assert machine.num_drafts(machine.request(num_right=1)) == 0


def test_what_guessing_takes_while_the_drafter_catches_up_says_nothing() -> None:
    machine = Machine(1.0, 0.01, guess=0.1, one_by_one=True)
    request = machine.request()
    first, second = step_with(request), step_with(request)
    machine.limit(first)
    machine.limit(second)
    assert first.load.num_drafts == 0 < second.load.num_drafts
    for load in (StepLoad(num_decode_tokens=1), StepLoad(1, 500, 1.0, num_drafts=4)):
        machine.limit.observe(load, 100.0)
    assert machine.num_drafts(request) > 0


def test_before_anything_is_measured_drafts_get_a_chance() -> None:
    limit = AdaptiveDrafts(MOST, DraftCounts(), StepTimeModel(), lambda: 1)
    request = Request(make_message("a", [1]))
    request.max_total_tokens = 10_000
    assert limit(step_with(request)) == {"a": 1}


def test_a_request_begins_with_one_draft_and_right_ones_bring_more() -> None:
    machine = Machine(1.0, 0.01)
    request = machine.request(steps=0)
    for most in (1, 3, MOST):
        assert machine.num_drafts(request) == most
        machine.counts.observe(request, most, most)
    beginner = machine.request(steps=0)
    for _ in range(3):
        assert machine.num_drafts(beginner) == 1
        machine.counts.observe(beginner, 1, 0)


def test_a_request_begins_with_what_others_learnt() -> None:
    machine = Machine(1.0, 0.5)
    assert machine.num_drafts(machine.request(steps=0)) > 0
    machine.request(num_right=0)
    assert machine.num_drafts(machine.request(steps=0)) == 0


@pytest.mark.parametrize(("one_by_one", "length"), [(False, 1), (True, 2)])
def test_one_draft_is_tried_now_and_then_and_right_ones_bring_the_others_back(one_by_one: bool, length: int) -> None:
    machine = Machine(1.0, 0.5, one_by_one=one_by_one)
    request = machine.request(num_right=0)
    request.num_vain_probes = 0
    tries = [machine.num_drafts(request) for _ in range(2 * (STEPS_BETWEEN_PROBES + length - 1))]
    assert tries == ([0] * (STEPS_BETWEEN_PROBES - 1) + [1] * length) * 2
    for _ in range(20):
        machine.counts.observe(request, 1, 1)
    assert machine.num_drafts(request) > 1


def test_where_no_guess_is_found_nobody_is_asked_for_one_any_more() -> None:
    machine = Machine(1.0, 0.2)
    request = machine.request(steps=0)
    num_asked = 0
    while machine.num_drafts(request) and num_asked < 99:
        machine.counts.observe_none(request)
        num_asked += 1
    assert 8 < num_asked < 99
    steps_left = machine.limit.steps_without(step_with(request))
    assert [machine.num_drafts(request) for _ in range(steps_left)] == [0] * (steps_left - 1) + [1]


def test_steps_may_follow_each_other_up_to_the_next_try_of_any_request() -> None:
    machine = Machine(1.0, 0.5)
    one, other, ending = (machine.request(num_right=0) for _ in range(3))
    one.num_vain_probes = other.num_vain_probes = 0
    one.num_steps_without_drafts, other.num_steps_without_drafts = 2, 5
    ending.num_steps_without_drafts, ending.max_total_tokens = STEPS_BETWEEN_PROBES, 2
    assert machine.limit.steps_without(step_with(one, other, ending)) == STEPS_BETWEEN_PROBES - 5
    assert machine.limit.steps_without(step_with(ending)) > 1_000
    assert AllDrafts(4).steps_without(step_with(one)) == 1


def test_tries_in_vain_become_rarer_to_a_bound() -> None:
    machine = Machine(1.0, 0.5)
    request = machine.request(num_right=0)
    longest = STEPS_BETWEEN_PROBES << MOST_VAIN_PROBES
    assert [machine.num_drafts(request) for _ in range(longest)] == [0] * (longest - 1) + [1]


def catching_up(*, read: float, answer: int) -> tuple[Machine, Request]:
    """A drafter that takes ``read`` seconds for each of 100 tokens, which nobody has told it of, of a new request."""
    machine = Machine(1.0, 0.01, guess=0.1, one_by_one=True, read=read)
    before = machine.request()
    before.num_tokens = before.num_prompt_tokens + answer
    machine.counts.note_end(before)
    request = machine.request(steps=0)
    request.num_prompt_tokens = request.num_tokens = 100
    return machine, request


def test_a_drafter_that_has_to_read_the_prompt_must_save_more_than_that() -> None:
    for read, answer, is_asked in ((0.1, 100, True), (0.1, 10, False), (1.0, 100, False), (0.01, 10, True)):
        machine, request = catching_up(read=read, answer=answer)
        assert (machine.num_drafts(request) > 0) is is_asked, (read, answer)


def test_what_it_has_read_or_a_prefix_that_was_found_costs_nothing() -> None:
    for name in ("num_known_to_drafter", "num_cached_tokens"):
        machine, request = catching_up(read=1.0, answer=20)
        assert machine.num_drafts(request) == 0
        setattr(request, name, 100)
        assert machine.num_drafts(request) == 1


def test_an_answer_that_goes_on_for_long_is_worth_reading() -> None:
    machine, request = catching_up(read=0.5, answer=1)
    assert machine.num_drafts(request) == 0
    request.num_tokens = 100 + 300
    assert machine.num_drafts(request) > 0


def test_reading_only_to_see_whether_drafts_are_still_a_loss_is_paid_from_a_small_share_of_all_steps() -> None:
    machine = Machine(1.0, 0.5, guess=0.1, one_by_one=True, read=0.2)
    machine.request(num_right=0)
    seconds_of_probes = num_probes = 0.0
    for _ in range(100):
        request = machine.request(steps=0)
        for request.num_tokens in range(50, 90):
            if machine.num_drafts(request):
                # Half a second for a draft beside a token, 0.1 s for guessing; and 0.2 s for each token, in the first.
                seconds_of_probes += 0.6 + 0.1 * request.num_tokens
                num_probes += 0.5
    assert num_probes >= 3
    assert seconds_of_probes < 0.021 * 1.5 * 100 * 40


def test_steps_of_bursts_pay_for_it_too() -> None:
    machine = Machine(1.0, 0.5, guess=0.1, one_by_one=True, read=0.2)
    request = machine.request(num_right=0)
    request.num_vain_probes, request.num_tokens = 0, 50
    step = step_with(request)
    assert machine.limit(step) == {}
    machine.limit.skip(step, STEPS_BETWEEN_PROBES - 2)
    assert machine.limit(step) == {}
    machine.limit.skip(step, 10_000)
    assert machine.limit(step) == {"a": 1}


def test_the_first_drafts_of_an_engine_with_a_second_model_are_made_before_they_are_judged() -> None:
    machine = Machine(1.0, 0.5, guess=1.0, one_by_one=True)
    request, asked = machine.request(steps=0), []
    for _ in range(40):
        asked.append(machine.num_drafts(request))
        if asked[-1]:
            machine.counts.observe(request, asked[-1], 0)
    assert sum(asked) == STEPS_TO_LEARN
    # Some are left out, for a step without them has to be seen too.
    assert asked[:8] == [1, 1, 1, 0, 1, 1, 1, 0]


def test_now_and_then_a_step_goes_without_the_drafts_of_a_second_model_alone() -> None:
    machine = Machine(1.0, 0.01, guess=0.1, one_by_one=True)
    request, numbers = machine.request(), []
    for _ in range(2 * STEPS_BETWEEN_PLAIN):
        step = step_with(request)
        numbers.append(machine.limit(step).get("a", 0))
        assert numbers[-1] or machine.limit.steps_without(step) == 1
    assert numbers.count(0) == 2
