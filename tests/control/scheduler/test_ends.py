"""Requests end: aborted, by themselves, or with an error.

Blocks hold 16 tokens; the model counts up and never stops by itself.
"""

from __future__ import annotations

import pytest

from octavo.words.messages import FinishReason
from tests.fakes import EOS, ControlPlane, scheduled


def test_aborting_unknown_or_finished_requests_is_no_error():
    plane = ControlPlane()  # CO11
    plane.add("a", 4, max_tokens=1)
    plane.run()
    assert plane.scheduler.abort_requests(["a", "never heard of", "a"]) == []
    assert not plane.scheduler.has_requests()


def test_a_request_aborted_before_its_first_step_never_runs():
    plane = ControlPlane()
    request = plane.add("a", 4)
    assert plane.scheduler.abort_requests(["a", "a"]) == [request]
    assert request.finish_reason is FinishReason.ABORT
    assert not plane.scheduler.has_requests()
    step = plane.schedule()
    assert (scheduled(step), step.finished_request_ids) == ({}, [])


@pytest.mark.parametrize("num_steps", [1, 3])
def test_aborting_in_prefill_or_decode_frees_everything_and_tells_the_workers_once(num_steps: int):
    plane = ControlPlane(max_num_batched_tokens=32)
    plane.add("a", 60)
    for _ in range(num_steps):
        plane.step()
    plane.scheduler.abort_requests(["a"])
    assert plane.kv_cache.usage == 0.0
    assert not plane.scheduler.has_unfinished_requests()
    assert plane.scheduler.has_requests(), "the workers are to be told"
    assert plane.step().finished_request_ids == ["a"]
    assert not plane.scheduler.has_requests()
    assert plane.step().finished_request_ids == []


def test_an_abort_while_its_step_runs_frees_when_the_step_returns_and_drops_the_token():
    plane = ControlPlane()
    plane.add("a", 20)
    plane.schedule()
    plane.scheduler.abort_requests(["a"])
    assert plane.kv_cache.usage > 0.0
    assert plane.update() == []
    assert plane.kv_cache.usage == 0.0


def test_a_preempted_request_can_be_aborted():
    plane = ControlPlane(num_blocks=5)
    plane.add("a", 32, max_tokens=3)
    plane.add("b", 32)
    plane.step()
    assert plane.step().preempted_request_ids == ["b"]
    plane.scheduler.abort_requests(["b"])
    plane.run()
    assert "b" not in [request_id for step in plane.steps for request_id in step.finished_request_ids]
    assert plane.kv_cache.usage == 0.0


def test_mixed_traffic_returns_every_block():
    plane = ControlPlane(num_blocks=24, max_num_batched_tokens=40)  # PC12
    for number in range(300):
        request = plane.add(f"r{number}", 1 + number * 7 % 90, max_tokens=1 + number % 9)
        if number % 5 == 2:
            plane.scheduler.abort_requests([f"r{number - 2}"])
        if number % 7 == 3:
            plane.failures[request.request_id] = "logits are not finite"
        plane.step()
    plane.run()
    assert plane.kv_cache.num_free_blocks == 23
    assert plane.scheduler.stats().kv_cache_usage == 0.0
    reasons = {request_id: outputs[-1].finish_reason for request_id, outputs in plane.outputs.items()}
    assert set(reasons.values()) >= {FinishReason.LENGTH, FinishReason.ERROR}
    assert plane.scheduler.reset_prefix_cache()


def test_end_of_sequence_and_stop_ids_end_a_request():
    def token(request_id: str, position: int) -> int:
        return EOS if request_id == "eos" and position == 6 else 100 + position

    plane = ControlPlane(next_token=token)
    plane.add("eos", 4)
    plane.add("ignores", 4, ignore_eos=True, max_tokens=8)
    plane.add("stop", 4, stop_token_ids=[105])
    plane.add("min", 4, stop_token_ids=[105, 107], min_tokens=3)
    plane.run()
    assert plane.token_ids("eos") == [104, 105, EOS]
    assert plane.last_output("eos").stop_reason is None
    assert len(plane.token_ids("ignores")) == 8
    assert plane.token_ids("stop") == [104, 105]
    assert plane.last_output("stop").stop_reason == 105
    assert plane.token_ids("min") == [104, 105, 106, 107]
    assert plane.last_output("min").finish_reason is FinishReason.STOP


def test_a_failed_request_ends_alone_with_its_reason_and_its_blocks_are_not_found_again():
    plane = ControlPlane()
    prompt = range(40)
    plane.add("a", prompt)
    plane.add("b", 20, max_tokens=2)
    plane.failures["a"] = "logits are not finite"
    plane.step()
    output = plane.last_output("a")
    assert (output.finish_reason, output.error) == (FinishReason.ERROR, "logits are not finite")
    assert plane.token_ids("a") == []
    plane.run()
    assert len(plane.token_ids("b")) == 2
    plane.add("again", prompt, max_tokens=1)
    plane.run()
    assert plane.last_output("again").num_cached_tokens == 0
    assert len(plane.token_ids("again")) == 1
