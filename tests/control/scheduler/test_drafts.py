from __future__ import annotations

from octavo.control.request import Request
from octavo.control.scheduler.drafts import AllDrafts, DraftCounts, NoDrafts
from octavo.control.scheduler.step_builder import StepBuilder
from tests.fakes import make_message


def step_with(*requests: Request) -> StepBuilder:
    step = StepBuilder(1, token_budget=99, num_eligible=len(requests))
    step.granted += requests
    return step


def test_drafts_leave_room_for_the_token_before_and_the_one_after_them() -> None:
    request = Request(make_message("a", [1, 2, 3]))
    for max_total_tokens, most in ((4, {}), (5, {}), (6, {"a": 1}), (8, {"a": 3}), (99, {"a": 4})):
        request.max_total_tokens = max_total_tokens
        assert AllDrafts(4)(step_with(request)) == most
    assert NoDrafts()(step_with(request)) == {}


def test_totals_are_counted() -> None:
    counts = DraftCounts()
    counts.observe(Request(make_message("a", [1])), 4, 3)
    counts.observe(Request(make_message("b", [1])), 2, 1)
    assert counts.totals() == {
        "num_drafts": 2,
        "num_draft_tokens": 6,
        "num_accepted_tokens": 4,
        "num_accepted_tokens_per_pos": [2, 1, 1, 0],
        "num_draft_trials": 0,
    }


def test_an_answer_is_expected_to_be_as_long_as_those_before_it_or_as_what_it_has_said() -> None:
    counts = DraftCounts()
    first, second = Request(make_message("a", [1])), Request(make_message("b", [1]))
    first.num_tokens = 1 + 6
    assert counts.tokens_to_come(second) == 0
    assert counts.tokens_to_come(first) == 6
    first.num_tokens = 1 + 40
    counts.note_end(first)
    assert counts.tokens_to_come(second) == 40
    second.num_tokens = 1 + 10
    assert counts.tokens_to_come(second) == 30
    second.num_tokens = 1 + 70
    assert counts.tokens_to_come(second) == 70


def test_a_draft_after_a_wrong_one_says_nothing_and_places_are_told_apart() -> None:
    counts, request = DraftCounts(in_hindsight=True), Request(make_message("a", [1]))
    assert counts.chances(request, 2) == [0.0, 0.0]
    for num_right in (0, 4) * 100:
        counts.observe(request, 4, num_right)
    first, *later = counts.chances(request, 4)
    assert 0.4 < first < 0.6
    assert all(chance > 0.9 * first for chance in later)


def test_of_places_that_were_never_asked_for_as_much_is_expected_as_of_the_others() -> None:
    counts, request = DraftCounts(), Request(make_message("a", [1]))
    for _ in range(200):
        counts.observe(request, 1, 1)
    assert counts.chances(request, 3)[2] > 0.85
    for _ in range(200):
        counts.observe(request, 1, 0)
    assert counts.chances(request, 3)[2] < 0.1


def test_steps_without_a_guess_are_no_wrong_drafts() -> None:
    counts, request = DraftCounts(), Request(make_message("a", [1]))
    for _ in range(200):
        counts.observe(request, 2, 2)
        counts.observe_none(request)
    assert 0.4 < counts.share_guessed(request) < 0.6
    assert counts.chances(request, 2)[1] > 0.9
    assert counts.num_drafts == 200
