"""Drafts in the scheduler's books: right ones count, wrong ones are taken back.

Blocks hold 16 tokens; the model counts up and never stops by itself.
"""

from __future__ import annotations

from typing import Any

from octavo.executor.simulated import TokenFunction
from tests.fakes import ControlPlane, counting_token, scheduled


def wrong_at(*positions: int) -> TokenFunction:
    """A drafter that is right but for these positions."""
    return lambda request_id, position: counting_token(request_id, position) + (position in positions)


def drafting_plane(*wrong: int, **options: Any) -> ControlPlane:
    return ControlPlane(next_draft=wrong_at(*wrong), num_lookahead_tokens=3, **options)


def test_right_drafts_give_several_tokens_per_step():
    plane = drafting_plane()
    request = plane.add("a", 10, max_tokens=100)
    assert scheduled(plane.step()) == {"a": 10}
    step = plane.step()
    assert step.draft_token_ids == {"a": [111, 112, 113]}
    assert scheduled(step) == {"a": 4}
    assert plane.last_output("a").new_token_ids == [111, 112, 113, 114]
    assert request.num_computed_tokens == request.num_tokens - 1 == 14


def test_rejected_drafts_are_taken_back():
    plane = drafting_plane(12)
    request = plane.add("a", 10, max_tokens=100)
    plane.step()
    plane.step()
    assert plane.last_output("a").new_token_ids == [111, 112]
    assert request.num_computed_tokens == request.num_tokens - 1 == 12
    assert plane.step().cached_requests[0].num_computed_tokens == 12


def test_tokens_after_the_one_that_ends_the_request_are_cut_off():
    plane = drafting_plane()
    plane.add("a", 10, max_tokens=100, stop_token_ids=[112])
    plane.step()
    plane.step()
    assert plane.last_output("a").new_token_ids == [111, 112]
    assert plane.last_output("a").stop_reason == 112
    assert plane.scheduler.stats().num_generation_tokens == 3


def test_drafts_beyond_max_tokens_are_not_computed():
    plane = drafting_plane()
    plane.add("a", 10, max_tokens=3)
    plane.step()
    step = plane.step()
    assert step.draft_token_ids == {"a": [111]}
    assert plane.token_ids("a") == [110, 111, 112]


def test_lookahead_slots_are_allocated_beyond_the_step():
    plane = drafting_plane()
    plane.add("a", 14, max_tokens=100)
    plane.step()
    assert len(plane.kv_cache.block_ids("a")[0]) == 2


def test_a_victim_loses_its_drafts():
    plane = drafting_plane(num_blocks=6)  # 5 usable
    plane.add("a", 29, max_tokens=100)
    b = plane.add("b", 29)
    plane.step()
    assert b.draft_token_ids
    assert plane.step().preempted_request_ids == ["b"]
    assert b.draft_token_ids == []


def test_drafts_of_a_prompt_in_progress_are_ignored():
    plane = drafting_plane(max_num_batched_tokens=9)
    request = plane.add("a", 10)
    step = plane.schedule()
    _, handle = plane.in_flight.popleft()
    result = plane.executor.sample(handle)
    result.draft_token_ids["a"] = [1, 2, 3]
    plane.scheduler.update_from_output(step, result)
    assert request.draft_token_ids == []


def test_rejected_drafts_of_a_step_in_flight_are_taken_back_when_it_returns():
    plane = drafting_plane(12, max_steps_in_flight=2)
    request = plane.add("a", 10, max_tokens=20)
    plane.schedule()
    plane.update()  # Nothing else is in flight: the drafts can be used.
    assert scheduled(plane.schedule()) == {"a": 4}
    assert scheduled(plane.schedule()) == {"a": 1}
    assert (request.num_computed_tokens, request.num_output_placeholders) == (15, 5)
    plane.update()  # One of three was right.
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (13, 13, 1)
    assert request.draft_token_ids == [], "a later step samples what they guess"
    plane.run()
    assert plane.token_ids("a") == list(range(110, 130))
