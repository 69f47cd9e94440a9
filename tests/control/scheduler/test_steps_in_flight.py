"""A step is decided while others run. Blocks hold 16 tokens; the model counts up and never stops by itself."""

from __future__ import annotations

import pytest

from tests.fakes import ControlPlane, scheduled


def test_the_next_step_is_scheduled_before_results_exist():
    plane = ControlPlane(max_steps_in_flight=2)
    request = plane.add("a", 20, max_tokens=5)
    assert scheduled(plane.schedule()) == {"a": 20}
    assert scheduled(plane.schedule()) == {"a": 1}
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (20, 21, 2)
    plane.update()
    assert (request.num_tokens, request.num_computed_tokens, request.num_output_placeholders) == (21, 21, 1)
    plane.run()
    assert plane.token_ids("a") == [120, 121, 122, 123, 124]


def test_no_more_steps_are_scheduled_than_may_be_in_flight():
    plane = ControlPlane(max_steps_in_flight=2)
    plane.add("a", 20)
    plane.schedule()
    plane.schedule()
    with pytest.raises(AssertionError, match="2 steps are in flight"):
        plane.scheduler.schedule()


@pytest.mark.parametrize(("max_tokens", "max_model_len"), [(2, 128), (50, 22)])
def test_nothing_is_scheduled_past_a_certain_end(max_tokens: int, max_model_len: int):
    plane = ControlPlane(max_steps_in_flight=3, max_model_len=max_model_len)
    plane.add("a", 20, max_tokens=max_tokens)
    assert scheduled(plane.schedule()) == {"a": 20}
    assert scheduled(plane.schedule()) == {"a": 1}
    assert scheduled(plane.schedule()) == {}, "two tokens are on their way, and that is all there can be"
    plane.run()
    assert plane.token_ids("a") == [120, 121]


def test_an_uncertain_end_costs_a_step_whose_token_is_dropped():
    plane = ControlPlane(max_steps_in_flight=2)
    plane.add("a", 20, stop_token_ids=[121])
    for _ in range(2):
        plane.step()
    assert plane.token_ids("a") == [120, 121]
    assert scheduled(plane.steps[-1]) == {"a": 1}
    plane.run()
    assert plane.token_ids("a") == [120, 121]
    assert plane.kv_cache.usage == 0.0


def test_blocks_of_an_aborted_request_are_free_only_when_its_last_step_returns():
    plane = ControlPlane(max_steps_in_flight=2)
    plane.add("a", 20)
    plane.schedule()
    plane.schedule()
    plane.scheduler.abort_requests(["a"])
    plane.update()
    assert plane.kv_cache.num_free_blocks == 61, "the second step is out"
    plane.update()
    assert plane.kv_cache.num_free_blocks == 63


def test_a_waiting_request_gets_those_blocks_one_step_later():
    plane = ControlPlane(max_steps_in_flight=2, num_blocks=3)  # 2 usable
    plane.add("a", 20, max_tokens=9)
    plane.schedule()
    plane.scheduler.abort_requests(["a"])
    plane.add("b", 20, max_tokens=2)
    assert scheduled(plane.schedule()) == {}
    plane.update()
    assert scheduled(plane.schedule()) == {"b": 20}
    plane.run()
    assert plane.token_ids("b") == [120, 121]


def test_blocks_are_cached_only_up_to_the_tokens_that_are_known():
    plane = ControlPlane(max_steps_in_flight=2)
    plane.add("a", 31, max_tokens=9)
    plane.schedule()
    plane.schedule()  # Fills the second block, with a token that nobody knows yet.
    plane.add("b", range(1), max_tokens=1)
    assert len(plane.scheduler.requests["a"].block_hashes) == 1
    plane.update()
    assert len(plane.scheduler.requests["a"].block_hashes) == 2
    plane.run()
    assert plane.token_ids("a") == list(range(131, 140))


def test_a_victim_is_preempted_only_when_its_steps_have_returned():
    plane = ControlPlane(max_steps_in_flight=2, num_blocks=5)  # 4 usable
    plane.add("a", 32, max_tokens=4)
    plane.add("b", 32, max_tokens=4)
    assert scheduled(plane.schedule()) == {"a": 32, "b": 32}
    step = plane.schedule()  # a needs a block, b is in flight.
    assert (scheduled(step), step.preempted_request_ids) == ({}, [])
    plane.update()
    step = plane.schedule()
    assert (scheduled(step), step.preempted_request_ids) == ({"a": 1}, ["b"])
    plane.run()
    assert [plane.token_ids(request_id) for request_id in "ab"] == [[132, 133, 134, 135]] * 2


def test_nobody_is_preempted_while_blocks_of_an_ended_request_are_about_to_return():
    plane = ControlPlane(policy="priority", max_steps_in_flight=2, num_blocks=9, max_num_batched_tokens=40)  # 8 usable
    plane.add("a", 31, priority=0)
    plane.add("b", 4, priority=2)
    plane.schedule()
    plane.update()
    plane.add("c", 79, priority=1)  # 5 blocks: all that are left.
    assert scheduled(plane.schedule()) == {"c": 40}
    assert scheduled(plane.schedule()) == {"a": 1, "c": 39}
    plane.update()
    plane.scheduler.abort_requests("c")
    step = plane.schedule()  # a needs a third block, and b, the last, is not in flight.
    assert (scheduled(step), step.preempted_request_ids) == ({}, [])
    plane.update()
    assert scheduled(plane.schedule()) == {"a": 1, "b": 1}


def test_the_lowest_is_held_back_until_an_urgent_request_can_take_its_seat():
    plane = ControlPlane(policy="priority", max_steps_in_flight=2, max_num_seqs=1)
    plane.add("low", 4, priority=1)
    plane.schedule()
    plane.add("urgent", 4, max_tokens=1)
    assert scheduled(plane.schedule()) == {}
    plane.update()
    step = plane.schedule()
    assert (scheduled(step), step.preempted_request_ids) == ({"urgent": 4}, ["low"])
    plane.run()
    assert len(plane.token_ids("low")) == 16


def test_a_request_that_fails_with_a_step_in_flight_ends_once():
    plane = ControlPlane(max_steps_in_flight=2)
    plane.add("a", 20)
    plane.failures["a"] = "logits are not finite"
    plane.run()
    assert [output.error for output in plane.outputs["a"]] == ["logits are not finite"]
    assert plane.kv_cache.usage == 0.0
