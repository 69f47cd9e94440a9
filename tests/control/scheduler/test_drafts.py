from __future__ import annotations

import pytest

from octavo.control.request import Request
from octavo.control.scheduler.drafts import STEPS_BETWEEN_PROBES, DraftCounts, DraftLimit
from octavo.control.scheduler.step_builder import StepLoad
from octavo.control.scheduler.step_time import StepTimeModel
from tests.fakes import make_message

DRAFTS = [1, 2, 3, 4, 5, 6, 7, 8]


def limit(fixed: float, per_token: float, num_streams: int = 1) -> DraftLimit:
    """On a machine whose steps were measured to take this long."""
    times = StepTimeModel()
    for _ in range(50):
        for num_tokens in (1, 9):
            times.observe(StepLoad(num_decode_tokens=num_tokens), fixed + per_token * num_tokens)
    return DraftLimit(times, lambda: num_streams)


def request_with(num_right: int, of: int = 8, steps: int = 40) -> Request:
    """A request so many of whose drafts were right in each step."""
    request, counts = Request(make_message("a", [1])), DraftCounts()
    for _ in range(steps):
        counts.observe(request, of, num_right)
    return request


def test_where_the_weights_take_the_time_right_drafts_are_free() -> None:
    assert limit(1.0, 0.01)(request_with(num_right=8), DRAFTS) == DRAFTS


def test_wrong_drafts_are_left_out() -> None:
    assert limit(1.0, 0.5)(request_with(num_right=0), DRAFTS) == []


def test_drafts_that_are_sometimes_right_are_shortened() -> None:
    kept = limit(1.0, 0.2)(request_with(num_right=1), DRAFTS)
    assert 0 < len(kept) < len(DRAFTS) and kept == DRAFTS[: len(kept)]


def test_many_streams_share_the_weights_so_a_draft_saves_less() -> None:
    request = request_with(num_right=1)
    alone, together = (len(limit(1.0, 0.2, num_streams=n)(request, DRAFTS)) for n in (1, 64))
    assert alone > together


def test_before_anything_is_measured_drafts_get_a_chance() -> None:
    assert DraftLimit(StepTimeModel(), lambda: 1)(Request(make_message("a", [1])), DRAFTS) == DRAFTS


@pytest.mark.parametrize("rounds", [3])
def test_one_draft_is_tried_now_and_then_and_right_ones_bring_the_others_back(rounds: int) -> None:
    limited, request, counts = limit(1.0, 0.5), request_with(num_right=0), DraftCounts()
    lengths = [len(limited(request, DRAFTS)) for _ in range(rounds * STEPS_BETWEEN_PROBES)]
    assert lengths == ([0] * (STEPS_BETWEEN_PROBES - 1) + [1]) * rounds
    for _ in range(20):
        counts.observe(request, 1, 1)
    assert len(limited(request, DRAFTS)) > 1


def test_totals_are_counted() -> None:
    counts = DraftCounts()
    counts.observe(Request(make_message("a", [1])), 8, 3)
    counts.observe(Request(make_message("b", [1])), 2, 0)
    assert vars(counts) == {"num_drafts": 2, "num_draft_tokens": 10, "num_accepted_tokens": 3}
