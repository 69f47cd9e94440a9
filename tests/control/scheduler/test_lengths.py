"""Requests that can never run, and those that grow past the cache.

Blocks hold 16 tokens; the model counts up and never stops by itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.control.kv.manager import KVCacheManager
from octavo.words.errors import RequestError
from octavo.words.messages import FinishReason
from tests.fakes import ControlPlane


def small_cache(**limits: Any) -> ControlPlane:
    """40 usable blocks, 640 tokens, for a context of 2048."""
    return ControlPlane(num_blocks=41, max_model_len=2048, max_num_batched_tokens=2048, **limits)


def test_a_request_that_can_never_fit_ends_within_a_step_and_harms_nobody():
    plane = small_cache()  # PC05
    plane.add("big", 900, max_tokens=10)
    plane.add("small", 4, max_tokens=1)
    plane.step()
    output = plane.last_output("big")
    assert output.finish_reason is FinishReason.ERROR
    assert "holds 640 tokens" in (output.error or "")
    assert plane.token_ids("small") == [104]
    assert not plane.scheduler.has_unfinished_requests()


def test_exactly_the_usable_tokens_work_and_one_more_does_not():
    plane = small_cache()
    plane.add("fits", 639, max_tokens=1)
    plane.add("too long", 640, max_tokens=1)
    plane.add("full", 600, max_tokens=40)
    plane.add("over", 600, max_tokens=41)
    plane.run()
    assert len(plane.token_ids("fits")) == 1
    assert plane.last_output("too long").finish_reason is FinishReason.ERROR
    assert len(plane.token_ids("full")) == 40
    assert len(plane.token_ids("over")) == 40
    assert plane.last_output("over").finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("max_steps_in_flight", [1, 2])
def test_a_request_that_grows_past_the_cache_ends_by_length_and_never_loops(max_steps_in_flight: int):
    solo = small_cache(max_steps_in_flight=max_steps_in_flight)  # PC06
    solo.add("a", 600, max_tokens=1000, ignore_eos=True)
    num_solo_steps = solo.run()
    assert len(solo.token_ids("a")) == 40
    assert solo.last_output("a").finish_reason is FinishReason.LENGTH
    assert solo.scheduler.stats().num_preemptions == 0

    two = small_cache(max_steps_in_flight=max_steps_in_flight)
    for request_id in "ab":
        two.add(request_id, 600, max_tokens=1000, ignore_eos=True)
    assert two.run() <= 3 * num_solo_steps
    assert [len(two.token_ids(request_id)) for request_id in "ab"] == [40, 40]


def test_two_requests_that_outgrow_the_cache_together_both_end():
    plane = small_cache()
    for request_id in "ab":
        plane.add(request_id, 300, max_tokens=1000, ignore_eos=True)
    assert plane.run() <= 3 * 340
    assert [len(plane.token_ids(request_id)) for request_id in "ab"] == [340, 340]
    assert plane.scheduler.stats().num_preemptions > 0


class BoastfulKVCacheManager(KVCacheManager):
    """Promises more than it has."""

    def can_ever_fit(self, num_tokens: int) -> bool:
        return True


@pytest.mark.parametrize("num_prompt", [16, 100])
def test_a_request_refused_while_nobody_else_holds_blocks_ends_with_an_error(num_prompt: int):
    plane = ControlPlane(num_blocks=4, manager=BoastfulKVCacheManager)  # 3 usable
    plane.add("a", num_prompt, max_tokens=100)
    plane.run()
    assert plane.last_output("a").finish_reason is FinishReason.ERROR
    assert "holds 48 tokens" in (plane.last_output("a").error or "")
    assert plane.scheduler.stats().num_preemptions == 0
    assert plane.kv_cache.usage == 0.0


def test_lookahead_slots_count_against_the_cache():
    plane = ControlPlane(num_blocks=5, num_lookahead_tokens=3)  # 64 tokens
    plane.add("a", 50, max_tokens=100)
    plane.run()
    assert 50 + len(plane.token_ids("a")) == 61
    assert plane.last_output("a").finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("num_prompt", "message"), [(0, "the prompt is empty"), (128, "the context length is 128"), (127, None)]
)
def test_prompts_that_leave_no_room_in_the_context_are_refused(num_prompt: int, message: str | None):
    plane = ControlPlane()
    plane.add("a", num_prompt, max_tokens=1)
    plane.run()
    error = plane.last_output("a").error
    assert error is None if message is None else message in (error or "")


def test_an_id_in_use_is_refused_and_free_again_afterwards():
    plane = ControlPlane()
    plane.add("a", 4, max_tokens=1)
    with pytest.raises(RequestError, match="request id 'a' is in use"):
        plane.add("a", 4)
    plane.schedule()
    plane.scheduler.abort_requests("a")
    with pytest.raises(RequestError, match="in use"):
        plane.add("a", 4)  # A step in flight still writes to its blocks.
    plane.update()
    plane.add("a", 4, max_tokens=1)
    plane.run()
    assert plane.token_ids("a") == [104]
