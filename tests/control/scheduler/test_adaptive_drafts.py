from __future__ import annotations

import pytest

from octavo.control.request import NEVER, Request
from octavo.control.scheduler.adaptive_drafts import (
    DRAFTS_TO_LEARN,
    FIRST_BURST,
    MOST_DOUBLINGS,
    PLAIN_STEPS,
    SHARE_TO_LEARN,
    STEPS_BETWEEN_PLAIN,
    STEPS_OF_A_TRY,
    STEPS_TO_LEARN,
    AdaptiveDrafts,
)
from octavo.control.scheduler.drafts import AllDrafts, DraftCounts
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from tests.fakes import make_message

MOST = 8


def step_with(*requests: Request) -> StepBuilder:
    step = StepBuilder(1, token_budget=99, num_eligible=len(requests))
    step.granted += requests
    return step


class Machine:
    """Its steps and its drafter were measured to take this long, and steps with drafts ``alone`` more than of a burst.

    The drafter can look back unless it reads, or guesses ``one_by_one``.
    """

    def __init__(
        self,
        fixed: float,
        per_row: float,
        *,
        alone: float = 0.0,
        guess: float = 0.0,
        one_by_one: bool = False,
        read: float | None = None,
    ) -> None:
        self.fixed, self.per_row, self.alone = fixed, per_row, alone
        self.looks_back = not one_by_one and read is None
        self.counts = DraftCounts(in_hindsight=self.looks_back)
        self.limit = AdaptiveDrafts(
            MOST, self.counts, one_by_one=one_by_one, catches_up=read is not None, looks_back=self.looks_back
        )
        for num_rows in (1, 9) * 50:
            self.plain_steps(1, num_rows=num_rows)
            load = StepLoad(num_decode_tokens=num_rows, num_drafts=MOST, has_drafts=True)
            self.limit.observe(load, 1, self.seconds(num_rows) + alone, guess * (MOST if one_by_one else 1))
        self.limit.observe(StepLoad(num_prefill_tokens=100, num_unread=100), 1, 1.0, guess + 100 * (read or 0.0))
        self.limit._credit = 0.0

    def seconds(self, num_rows: int) -> float:
        return self.fixed + self.per_row * num_rows

    def plain_steps(self, num_steps: int, *, num_rows: int = 1, draft_seconds: float = 0.0) -> None:
        """A burst without drafts comes back."""
        load = StepLoad(num_decode_tokens=num_rows)
        self.limit.observe(load, num_steps, num_steps * self.seconds(num_rows), draft_seconds)

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


def test_drafts_of_places_that_are_seldom_right_are_left_out() -> None:
    machine = Machine(1.0, 0.2)
    assert machine.num_drafts(machine.request(num_right=3)) == 3


def test_a_step_with_drafts_has_to_beat_one_of_a_burst() -> None:
    for alone, number in ((0.1, 1), (1.0, 0)):
        machine = Machine(1.0, 0.1, alone=alone)
        assert machine.num_drafts(machine.request(num_right=1)) == number


def test_many_requests_share_the_weights_so_a_draft_saves_less() -> None:
    machine = Machine(1.0, 0.2)
    request = machine.request(num_right=1)
    others = [machine.request(num_right=0) for _ in range(8)]
    assert machine.num_drafts(request) == 1
    assert machine.limit(step_with(request, *others)) == {}


def test_one_request_alone_does_not_take_bursts_from_many() -> None:
    machine = Machine(1.0, 0.01, alone=0.2)
    request, wrong = machine.request(num_right=2), [machine.request(num_right=0) for _ in range(31)]
    assert machine.num_drafts(request) > 0
    assert machine.limit(step_with(request, *wrong)) == {}


def test_a_drafter_that_takes_as_long_as_the_model_is_left_out_however_right_it_is() -> None:
    slow, fast = (Machine(1.0, 0.01, guess=seconds, one_by_one=True) for seconds in (1.1, 0.1))
    assert slow.num_drafts(slow.request()) == 0
    assert fast.num_drafts(fast.request()) > 0


def test_a_drafter_that_guesses_all_at_once_is_asked_for_many_or_none() -> None:
    machine = Machine(1.0, 0.01, guess=2.0)
    assert machine.num_drafts(machine.request()) == MOST
    machine = Machine(1.0, 0.01, guess=2.0)
    assert machine.num_drafts(machine.request(num_right=1)) == 0


def test_what_guessing_takes_while_the_drafter_catches_up_says_nothing() -> None:
    machine = Machine(1.0, 0.01, guess=0.1, one_by_one=True)
    request = machine.request()
    first, second = step_with(request), step_with(request)
    machine.limit(first)
    machine.limit(second)
    assert first.load.num_drafts == 0 < second.load.num_drafts
    for load in (StepLoad(num_decode_tokens=1), StepLoad(1, 500, 1.0, num_drafts=4)):
        machine.limit.observe(load, 1, 1.01, 100.0)
    assert machine.num_drafts(request) > 0


def test_a_request_begins_with_what_others_learnt() -> None:
    machine = Machine(1.0, 0.5)
    machine.request()
    assert machine.num_drafts(machine.request(steps=0)) > 0
    machine.request(num_right=0)
    assert machine.num_drafts(machine.request(steps=0)) == 0


# ---- drafts that can be judged in hindsight --------------------------------------------------------------------------


def test_what_was_never_judged_is_not_made_but_judged_in_hindsight() -> None:
    machine = Machine(1.0, 0.01)
    request = machine.request(steps=0)
    assert machine.num_drafts(request) == 0
    assert machine.limit.trials(step_with(request)) == {"a": MOST}
    machine.counts.observe_trials(request, [(MOST, MOST)] * 2)
    assert machine.num_drafts(request) == MOST
    assert machine.counts.totals()["num_draft_trials"] == 2
    assert machine.counts.num_drafts == 0


def test_where_there_is_no_guess_none_is_asked_for() -> None:
    machine = Machine(1.0, 0.2, alone=0.05)
    request = machine.request()
    asked = 0
    while machine.num_drafts(request) and asked < 99:
        machine.counts.observe_none(request)
        asked += 1
    assert 4 < asked < 99


def test_bursts_grow_while_a_request_begins() -> None:
    machine = Machine(1.0, 0.5)
    request = machine.request(steps=0)
    request.num_tokens = request.num_prompt_tokens + 1
    assert machine.limit.steps_without(step_with(request)) == FIRST_BURST
    request.num_tokens += 40
    assert machine.limit.steps_without(step_with(request)) == 41
    assert AllDrafts(4).steps_without(step_with(request)) == 1


def test_looking_back_takes_a_small_share_of_the_time_however_slow_it_is() -> None:
    machine = Machine(1.0, 0.5)
    request, spent, looks = machine.request(num_right=0), 0.0, 0
    for _ in range(1_000):
        looked = bool(machine.limit.trials(step_with(request)))
        machine.plain_steps(8, draft_seconds=0.5 * looked)
        spent, looks = spent + 0.5 * looked, looks + looked
    assert looks > 10
    assert spent <= SHARE_TO_LEARN * 1_000 * 8 * 1.5 + 0.5


# ---- drafts that have to be made to be judged ------------------------------------------------------------------------


def test_the_first_drafts_are_made_before_they_are_judged() -> None:
    machine = Machine(1.0, 0.5, guess=1.0, one_by_one=True)
    request, asked = machine.request(steps=0), []
    for _ in range(40):
        asked.append(machine.num_drafts(request))
        if asked[-1]:
            machine.counts.observe(request, asked[-1], 0)
    assert asked.count(DRAFTS_TO_LEARN) == STEPS_TO_LEARN and sum(asked) == STEPS_TO_LEARN * DRAFTS_TO_LEARN
    # Some are left out, for a step without them has to be seen too.
    assert asked[:10] == [2, 2, 2, 2, 0, 2, 2, 2, 2, 0]
    assert machine.limit.trials(step_with(request)) == {}


def num_tries(machine: Machine, request: Request, num_bursts: int, *, num_right: int = 0) -> list[int]:
    """The bursts before each try; its drafts are so often right."""
    tries, before = [], 0
    for _ in range(num_bursts):
        number = machine.num_drafts(request)
        if number:
            machine.counts.observe(request, number, min(number, num_right))
            tries += [before] if before else []
            before = 0
        else:
            machine.plain_steps(8)
            before += 1
    return tries


def test_where_drafts_are_a_loss_one_is_tried_ever_more_rarely() -> None:
    machine = Machine(1.0, 0.1, guess=0.1, one_by_one=True)
    waits = num_tries(machine, machine.request(num_right=0), 8_000)
    assert len(waits) > MOST_DOUBLINGS + 2
    assert all(
        1.8 * one < other < 2.2 * one for one, other in zip(waits[1:], waits[2 : MOST_DOUBLINGS + 1], strict=False)
    )
    assert waits[-1] == pytest.approx(waits[-2], rel=0.1)
    # A try takes less of the time than it may, the first one included.
    assert SHARE_TO_LEARN * waits[0] * 8 * 1.1 * 1.01 >= STEPS_OF_A_TRY * 0.2


def test_right_drafts_of_a_try_bring_the_others_back() -> None:
    machine = Machine(1.0, 0.1, guess=0.1, one_by_one=True)
    machine.request(num_right=0)
    request = machine.request(steps=0)
    num_tries(machine, request, STEPS_BETWEEN_PLAIN, num_right=MOST)
    assert machine.num_drafts(request) == MOST


def test_bursts_are_as_long_as_they_can_be_where_nothing_is_learnt_from_them() -> None:
    machine = Machine(1.0, 0.5, guess=1.0, one_by_one=True)
    request = machine.request(num_right=0)
    assert machine.num_drafts(request) == 0
    assert machine.limit.steps_without(step_with(request)) == NEVER


def test_now_and_then_some_steps_go_without_drafts_to_be_timed() -> None:
    machine = Machine(1.0, 0.01, guess=0.1, one_by_one=True)
    request, numbers = machine.request(), []
    for _ in range(2 * (STEPS_BETWEEN_PLAIN + 1)):
        step = step_with(request)
        numbers.append(machine.limit(step).get("a", 0))
        assert numbers[-1] or machine.limit.steps_without(step) == PLAIN_STEPS
    assert numbers.count(0) == 2


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
    for read, answer, is_asked in ((0.1, 100, True), (0.1, 2, False), (5.0, 100, False), (0.01, 10, True)):
        machine, request = catching_up(read=read, answer=answer)
        assert (machine.num_drafts(request) > 0) is is_asked, (read, answer)


def test_what_it_has_read_or_a_prefix_that_was_found_costs_nothing() -> None:
    for name in ("num_known_to_drafter", "num_cached_tokens"):
        machine, request = catching_up(read=5.0, answer=20)
        assert machine.num_drafts(request) == 0
        setattr(request, name, 100)
        assert machine.num_drafts(request) > 0


def test_an_answer_that_goes_on_for_long_is_worth_reading() -> None:
    machine, request = catching_up(read=0.5, answer=1)
    assert machine.num_drafts(request) == 0
    request.num_tokens = 100 + 300
    assert machine.num_drafts(request) > 0


def test_reading_to_try_is_saved_up_for_too() -> None:
    waits = []
    for read in (0.0, 1.0):
        machine = Machine(1.0, 0.1, guess=0.1, one_by_one=True, read=read)
        request = machine.request(num_right=0)
        request.num_tokens = 20
        waits.append(num_tries(machine, request, 1_000)[0])
    assert waits[1] > waits[0] + 15 / (SHARE_TO_LEARN * 8 * 1.1)
