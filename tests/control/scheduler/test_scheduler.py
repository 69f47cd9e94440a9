"""One edge case each, with exact counts. Blocks hold 16 tokens; the model counts up and never stops by itself."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.control.kv.manager import KVBlocks, KVCacheManager
from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.executor.simulated import TokenFunction
from octavo.words.errors import ConfigError, RequestError
from octavo.words.messages import FinishReason
from tests.fakes import EOS, ControlPlane, counting_token, ids, scheduled

# ---- tokens and budgets ------------------------------------------------------------------------------------------


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


# ---- preemption --------------------------------------------------------------------------------------------------


def test_a_full_cache_preempts_the_last_request_which_comes_back_in_full():
    plane = ControlPlane(num_blocks=5)  # 4 usable
    plane.add("a", 32, max_tokens=2)
    b = plane.add("b", 32, max_tokens=4)
    assert scheduled(plane.step()) == {"a": 32, "b": 32}

    step = plane.step()  # a needs a third block.
    assert step.preempted_request_ids == ["b"]
    assert scheduled(step) == {"a": 1}
    assert (b.num_computed_tokens, b.num_preemptions, b.status) == (0, 1, RequestStatus.PREEMPTED)
    assert plane.scheduler.stats().num_preemptions == 1

    step = plane.step()  # a has ended. The tail of b went to a, its first block is still cached: 33 - 16 tokens.
    assert step.finished_request_ids == ["a"]
    (back,) = step.new_requests
    assert (back.request_id, back.output_token_ids, back.num_computed_tokens) == ("b", [132], 16)
    assert scheduled(step) == {"b": 17}
    plane.run()
    assert plane.token_ids("b") == [132, 133, 134, 135]
    assert plane.last_output("b").num_preemptions == 1


def test_nobody_is_admitted_in_a_step_that_preempted():
    plane = ControlPlane(num_blocks=6)  # 5 usable
    plane.add("a", 32)
    plane.add("b", 48)
    plane.step()
    plane.add("c", 4)  # Would fit into what b leaves.
    step = plane.step()
    assert step.preempted_request_ids == ["b"]
    assert scheduled(step) == {"a": 1}
    assert ids(plane.scheduler.waiting) == ["b", "c"]


def test_several_victims_of_one_step_keep_their_order_at_the_front_of_the_queue():
    plane = ControlPlane(num_blocks=7, long_prefill_token_threshold=48, max_num_seqs=3)  # 6 usable
    plane.add("a", 95)
    for request_id in "bcd":
        plane.add(request_id, 8)
    assert scheduled(plane.step()) == {"a": 48, "b": 8, "c": 8}
    step = plane.step()  # a needs 3 more blocks and 1 is free.
    assert step.preempted_request_ids == ["c", "b"]
    assert scheduled(step) == {"a": 47}
    assert ids(plane.scheduler.waiting) == ["b", "c", "d"]
    assert list(scheduled(plane.step())) == ["b", "c", "d"]


def test_a_request_that_is_the_last_itself_gives_way():
    plane = ControlPlane(num_blocks=5)  # 4 usable
    plane.add("a", 40, max_tokens=3)
    plane.add("b", 16)
    plane.step()
    step = plane.step()  # b needs a second block; a has room in its third.
    assert step.preempted_request_ids == ["b"]
    assert scheduled(step) == {"a": 1}


def test_a_prompt_is_admitted_only_if_all_of_it_fits_now():
    plane = ControlPlane(num_blocks=9, max_num_batched_tokens=32)  # 8 usable
    plane.add("a", 16)
    plane.step()
    plane.add("b", 113)  # 8 blocks, of which the first chunk needs 2.
    assert scheduled(plane.step()) == {"a": 1}
    plane.scheduler.abort_requests("a")
    assert scheduled(plane.step()) == {"b": 32}


def test_a_refused_request_blocks_those_behind_it():
    plane = ControlPlane(num_blocks=9)
    plane.add("a", 40)
    plane.step()
    plane.add("b", 96)
    plane.add("c", 4)
    assert scheduled(plane.step()) == {"a": 1}
    assert ids(plane.scheduler.waiting) == ["b", "c"]


def test_the_watermark_keeps_blocks_free_when_a_request_joins_others_but_not_when_alone():
    plane = ControlPlane(num_blocks=9, watermark=0.25)  # 8 usable, 2 stay free
    plane.add("a", 16 * 7)
    assert scheduled(plane.step()) == {"a": 64}, "alone it may have all"
    plane.scheduler.abort_requests("a")
    plane.add("b", 16 * 4)
    plane.step()
    plane.add("c", 33)  # 3 blocks; b holds 4 and takes its fifth in this step: 3 are free.
    assert scheduled(plane.step()) == {"b": 1}
    plane.scheduler.abort_requests("c")
    plane.add("d", 16)
    assert scheduled(plane.step()) == {"b": 1, "d": 16}


# ---- what can never run ------------------------------------------------------------------------------------------


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


# ---- aborts and ends ---------------------------------------------------------------------------------------------


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


# ---- prefix cache ------------------------------------------------------------------------------------------------


def test_a_cached_prefix_is_not_computed_again_but_one_token_always_is():
    plane = ControlPlane()
    plane.add("a", range(64), max_tokens=1)
    plane.run()
    plane.add("b", range(64), max_tokens=1)
    (new,) = plane.step().new_requests
    assert new.num_computed_tokens == 48
    assert scheduled(plane.steps[-1]) == {"b": 16}
    assert plane.last_output("b").num_cached_tokens == 48
    stats = plane.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (128, 48)


def test_hits_are_counted_at_admission_only():
    plane = ControlPlane(max_num_seqs=1)
    plane.add("a", range(32), max_tokens=4)
    plane.step()
    plane.add("b", range(32), max_tokens=1)
    plane.step()
    plane.step()
    assert plane.scheduler.stats().prefix_cache_queries == 32
    plane.run()
    assert plane.scheduler.stats().prefix_cache_queries == 64


def test_cached_tokens_are_those_of_the_first_admission():
    plane = ControlPlane(num_blocks=5)
    plane.add("a", 32, max_tokens=2)
    plane.add("b", 32, max_tokens=4)
    plane.run()
    assert plane.scheduler.stats().num_preemptions == 1
    assert plane.last_output("b").num_cached_tokens == 0


def test_resetting_the_cache_is_refused_while_a_request_runs():
    plane = ControlPlane()  # PC14
    plane.add("a", range(40), max_tokens=2)
    plane.step()
    assert not plane.scheduler.reset_prefix_cache()
    plane.run()
    assert plane.token_ids("a") == [140, 141]
    assert plane.scheduler.reset_prefix_cache()
    plane.add("b", range(40), max_tokens=1)
    plane.run()
    assert plane.last_output("b").num_cached_tokens == 0


def test_a_salt_keeps_a_prefix_apart():
    plane = ControlPlane()
    for request_id, salt in (("a", "x"), ("b", "x"), ("c", "y"), ("d", None)):
        plane.add(request_id, range(40), max_tokens=1, cache_salt=salt)
        plane.run()
    assert [plane.last_output(request_id).num_cached_tokens for request_id in "abcd"] == [0, 32, 0, 0]


# ---- prompt logprobs ---------------------------------------------------------------------------------------------


def test_prompt_logprobs_are_collected_over_chunks_and_sent_once():
    plane = ControlPlane(max_num_batched_tokens=32)
    plane.add("a", range(70), prompt_logprobs=0, max_tokens=3)
    plane.run()
    first, *rest = plane.outputs["a"]
    assert [row.token_ids[0] for row in first.prompt_logprobs or ()] == list(range(1, 70))
    assert [output.prompt_logprobs for output in rest] == [None, None]


def test_a_request_for_prompt_logprobs_computes_what_is_cached():
    plane = ControlPlane()
    plane.add("a", range(40), max_tokens=1)
    plane.run()
    plane.add("b", range(40), prompt_logprobs=0, max_tokens=1)
    plane.run()
    assert len(plane.last_output("b").prompt_logprobs or ()) == 39
    assert plane.last_output("b").num_cached_tokens == 0


def test_prompt_logprobs_of_a_preempted_prefill_start_again():
    plane = ControlPlane(num_blocks=7, long_prefill_token_threshold=16)  # 6 usable
    plane.add("a", 16, max_tokens=17)
    b = plane.add("b", 75, prompt_logprobs=0, max_tokens=2)
    for _ in range(4):
        plane.step()
    assert len(b.prompt_logprobs) == 64
    assert plane.step().preempted_request_ids == ["b"]  # a took a second block, b needs a fifth.
    assert b.prompt_logprobs == []
    plane.run()
    first, second = plane.outputs["b"]
    assert [row.token_ids[0] for row in first.prompt_logprobs or ()] == b.prompt_token_ids[1:]
    assert second.prompt_logprobs is None


def test_prompt_logprobs_are_not_sent_again_after_a_preemption():
    plane = ControlPlane(num_blocks=5)
    plane.add("a", 32, max_tokens=2)
    plane.add("b", 32, prompt_logprobs=0, max_tokens=3)
    plane.run()
    assert plane.scheduler.stats().num_preemptions == 1
    assert [len(output.prompt_logprobs or ()) for output in plane.outputs["b"]] == [31, 0, 0]


# ---- drafts ------------------------------------------------------------------------------------------------------


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


# ---- priority ----------------------------------------------------------------------------------------------------


def test_an_urgent_request_takes_the_seat_of_the_lowest_at_the_next_step():
    plane = ControlPlane(policy="priority", max_num_seqs=3)  # PC13
    plane.add("low", 4, priority=5, arrival_time=0.0)
    plane.add("lowest", 4, priority=9, arrival_time=1.0)
    plane.add("middle", 4, priority=3, arrival_time=2.0)
    plane.step()
    plane.add("urgent", 4, priority=0, arrival_time=3.0, max_tokens=2)
    step = plane.step()
    assert step.preempted_request_ids == ["lowest"]
    assert scheduled(step) == {"urgent": 4, "middle": 1, "low": 1}
    plane.step()
    assert list(scheduled(plane.step())) == ["middle", "low", "lowest"], "it comes back when the urgent one is gone"


def test_an_urgent_request_takes_the_blocks_of_the_lowest():
    plane = ControlPlane(policy="priority", num_blocks=9)  # 8 usable
    for number, request_id in enumerate("abc"):
        plane.add(request_id, 30, priority=1, arrival_time=float(number))
    plane.step()
    plane.add("urgent", 60, priority=0, arrival_time=9.0)  # 4 blocks; 2 are free.
    step = plane.step()
    assert step.preempted_request_ids == ["c"]
    assert scheduled(step) == {"urgent": 60, "a": 1, "b": 1}


def test_equals_do_not_take_each_others_place():
    plane = ControlPlane(policy="priority", max_num_seqs=1)
    plane.add("late", 4, priority=1, arrival_time=5.0, max_tokens=2)
    plane.step()
    plane.add("early", 4, priority=1, arrival_time=0.0)
    assert scheduled(plane.step()) == {"late": 1}
    assert scheduled(plane.step()) == {"early": 4}


def test_the_victim_is_the_lowest_priority_then_the_latest_and_gets_nothing_of_the_step():
    plane = ControlPlane(policy="priority", num_blocks=7)  # 6 usable
    plane.add("low", 31, priority=2, arrival_time=0.0)
    plane.add("high late", 31, priority=1, arrival_time=2.0)
    plane.step()
    plane.add("high early", 31, priority=1, arrival_time=1.0)
    plane.step()
    assert ids(plane.scheduler.running) == ["high early", "high late", "low"]
    step = plane.step()  # The high ones need a third block each.
    assert step.preempted_request_ids == ["low"]
    assert scheduled(step) == {"high early": 1, "high late": 1}
    assert step.total_num_scheduled_tokens == 2


def test_requests_of_one_priority_start_in_order_of_arrival():
    plane = ControlPlane(policy="priority", max_num_seqs=1)
    plane.add("second", 4, arrival_time=2.0, max_tokens=1)
    plane.add("first", 4, arrival_time=1.0, max_tokens=1)
    plane.add("urgent", 4, priority=-1, arrival_time=3.0, max_tokens=1)
    plane.run()
    assert list(plane.outputs) == ["urgent", "first", "second"]


# ---- several steps in flight -------------------------------------------------------------------------------------


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


# ---- replay, clients, books --------------------------------------------------------------------------------------


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
