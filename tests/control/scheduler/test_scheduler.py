"""Tokens, budgets and books of a step: one edge case each, with exact counts.

Blocks hold 16 tokens; the model counts up and never stops by itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.control.kv.manager import KVBlocks, KVCacheManager
from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.words.errors import ConfigError
from octavo.words.messages import FinishReason
from tests.fakes import EOS, ControlPlane, scheduled


def test_a_prompt_is_computed_at_once_and_then_token_by_token():
    plane = ControlPlane()
    request = plane.add("a", 20, max_tokens=3)
    assert scheduled(plane.step()) == {"a": 20}
    assert scheduled(plane.step()) == {"a": 1}
    assert scheduled(plane.step()) == {"a": 1}
    assert plane.token_ids("a") == [120, 121, 122]
    assert plane.last_output("a").finish_reason is FinishReason.LENGTH
    assert request.status is RequestStatus.FINISHED_LENGTH
    assert plane.kv_cache.usage == 0.0


def test_a_long_prompt_is_computed_in_chunks_and_only_the_last_gives_a_token():
    plane = ControlPlane(max_num_batched_tokens=48)
    plane.add("a", 100)
    assert scheduled(plane.step()) == {"a": 48}
    assert scheduled(plane.step()) == {"a": 48}
    assert plane.outputs == {}
    assert scheduled(plane.step()) == {"a": 4}
    assert plane.token_ids("a") == [200]
    assert plane.scheduler.stats().num_prefill_chunks == 2
    plane.step()
    assert plane.scheduler.stats().num_prefill_chunks == 2


def test_running_requests_are_served_before_waiting_ones():
    plane = ControlPlane(max_num_batched_tokens=48)
    plane.add("a", 20)
    plane.step()
    plane.add("b", 100)
    assert scheduled(plane.step()) == {"a": 1, "b": 47}
    assert scheduled(plane.step()) == {"a": 1, "b": 47}
    assert scheduled(plane.step()) == {"a": 1, "b": 6}
    assert scheduled(plane.step()) == {"a": 1, "b": 1}


def test_a_chunk_and_the_next_prompt_share_a_step():
    plane = ControlPlane(max_num_batched_tokens=48)
    plane.add("a", 60)
    plane.add("b", 10)
    assert scheduled(plane.step()) == {"a": 48}
    assert scheduled(plane.step()) == {"a": 12, "b": 10}


def test_no_more_requests_run_than_there_are_seats():
    plane = ControlPlane(max_num_seqs=2)
    for request_id in "abc":
        plane.add(request_id, 4, max_tokens=2)
    assert list(scheduled(plane.step())) == ["a", "b"]
    assert list(scheduled(plane.step())) == ["a", "b"]
    assert list(scheduled(plane.step())) == ["c"]


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it():
    plane = ControlPlane(enable_chunked_prefill=False, max_num_batched_tokens=48)
    plane.add("a", 30)
    plane.add("b", 30, max_tokens=2)
    plane.add("c", 4)  # Behind b: it must not slip past.
    assert scheduled(plane.step()) == {"a": 30}
    assert scheduled(plane.step()) == {"a": 1, "b": 30, "c": 4}


def test_without_chunked_prefill_a_prompt_above_the_budget_is_refused():
    plane = ControlPlane(enable_chunked_prefill=False, max_num_batched_tokens=48)
    plane.add("a", 49)
    plane.add("b", 48)
    assert scheduled(plane.step()) == {"b": 48}
    assert "49 tokens and a step takes 48" in (plane.last_output("a").error or "")


def test_without_chunked_prefill_a_victim_that_outgrew_every_step_is_chunked():
    plane = ControlPlane(enable_chunked_prefill=False, max_num_batched_tokens=32)
    request = plane.add("a", 30, output_token_ids=range(130, 140), max_tokens=12)
    assert scheduled(plane.step()) == {"a": 32}
    assert scheduled(plane.step()) == {"a": 8}
    plane.run()
    assert request.output_token_ids == [*range(130, 142)]


def test_the_long_prefill_threshold_leaves_tokens_to_others_and_is_off_alone():
    plane = ControlPlane(long_prefill_token_threshold=16)
    plane.add("a", 60)
    plane.add("b", 60, max_tokens=1)
    plane.add("c", 10, max_tokens=1)
    assert scheduled(plane.step()) == {"a": 16, "b": 16, "c": 10}
    assert plane.token_ids("c"), "the short one was not held up by the long ones (PC08)"
    assert scheduled(plane.step()) == {"a": 16, "b": 16}
    plane.scheduler.abort_requests("b")
    assert scheduled(plane.step()) == {"a": 28}


def test_a_context_of_exactly_the_limit_ends_by_length():
    plane = ControlPlane(max_model_len=24)
    plane.add("a", 20, max_tokens=100)
    plane.run()
    assert len(plane.token_ids("a")) == 4
    assert plane.last_output("a").finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    "extreme",
    [
        {"max_num_seqs": 1},
        {"max_num_batched_tokens": 1},
        {"max_num_batched_tokens": 2, "max_num_seqs": 8},
        {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_steps_in_flight": 2},
        {"num_blocks": 4},
    ],
)
def test_extreme_limits_give_the_same_tokens(extreme: dict[str, int]):
    plane = ControlPlane(**extreme)  # PC16
    for request_id in "abcd":
        plane.add(request_id, 20, max_tokens=8)
    plane.run()
    for request_id in "abcd":
        assert plane.token_ids(request_id) == list(range(120, 128))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1"),
        ({"num_lookahead_tokens": -1}, "num_lookahead_tokens must be at least 0"),
        ({"watermark": 1.0}, "watermark must be at least 0 and below 1"),
        ({"policy": "lifo"}, "must be one of fcfs, priority, got 'lifo'"),
    ],
)
def test_limits_that_no_step_could_meet_are_refused(wrong: dict[str, Any], message: str):
    good: dict[str, Any] = {"max_num_seqs": 1, "max_num_batched_tokens": 1, "max_model_len": 1}
    with pytest.raises(ConfigError, match=message):
        SchedulerLimits(**(good | wrong))


def test_a_replay_continues_where_it_was():
    plane = ControlPlane()
    plane.add("a", 10, output_token_ids=[110, 111], max_tokens=4)
    (new,) = plane.step().new_requests
    assert new.output_token_ids == [110, 111]
    assert scheduled(plane.steps[-1]) == {"a": 12}
    plane.run()
    assert plane.token_ids("a") == [112, 113]


def test_a_replay_that_was_complete_is_reported_and_not_run():
    plane = ControlPlane()
    plane.add("length", 10, output_token_ids=[110, 111], max_tokens=2)
    plane.add("stop", 10, output_token_ids=[110, EOS], max_tokens=9)
    assert scheduled(plane.step()) == {}
    assert plane.last_output("length").finish_reason is FinishReason.LENGTH
    assert plane.last_output("stop").finish_reason is FinishReason.STOP
    assert not plane.scheduler.has_requests()


def test_outputs_go_to_the_client_that_asked():
    plane = ControlPlane()
    plane.add("a", 4)
    plane.add("b", 4).client_index = 3
    plane.add("c", 0).client_index = 3
    step = plane.schedule()
    _, handle = plane.in_flight.popleft()
    by_client = plane.scheduler.update_from_output(step, plane.executor.sample(handle))
    assert {client: [output.request_id for output in outputs] for client, outputs in by_client.items()} == {
        0: ["a"],
        3: ["c", "b"],
    }


def test_the_books_count_what_was_done():
    plane = ControlPlane(max_num_seqs=1)
    plane.add("a", 20, max_tokens=3, logprobs=0)
    plane.add("b", 20)
    plane.step()
    plane.step()
    stats = plane.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_steps) == (1, 1, 2)
    assert (stats.num_prompt_tokens, stats.num_generation_tokens) == (20, 2)
    assert stats.kv_cache_usage == pytest.approx(2 / 63)
    assert [row.token_ids for row in plane.last_output("a").new_logprobs or ()] == [[121]]
    assert plane.last_output("a").first_scheduled_time is not None


def test_blocks_of_the_step_are_told_to_the_workers():
    plane = ControlPlane(enable_caching=False)
    plane.add("a", 32)
    (new,) = plane.step().new_requests
    assert new.block_ids == ([1, 2],)
    (cached,) = plane.step().cached_requests
    assert (cached.new_block_ids, cached.num_computed_tokens) == (([3],), 32)
    (cached,) = plane.step().cached_requests
    assert (cached.new_block_ids, cached.num_computed_tokens) == (([],), 33)


class CountingKVCacheManager(KVCacheManager):
    """Counts lookups."""

    num_lookups = 0

    def get_computed_blocks(self, request: Request) -> tuple[KVBlocks, int]:
        self.num_lookups += 1
        return super().get_computed_blocks(request)


def test_a_full_house_costs_no_lookups():
    plane = ControlPlane(max_num_seqs=1, manager=CountingKVCacheManager)
    plane.add("a", 4, max_tokens=5)
    plane.add("b", 40)
    for _ in range(4):
        plane.step()
    assert isinstance(plane.kv_cache, CountingKVCacheManager)
    assert plane.kv_cache.num_lookups == 1
