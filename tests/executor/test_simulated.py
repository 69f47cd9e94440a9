"""The simulated executor: what it makes up, and what it refuses to believe."""

from __future__ import annotations

import time
from typing import Any

import pytest

from octavo.executor.protocol import Executor
from octavo.executor.simulated import InconsistentStep, SimulatedExecutor, scattered_token
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import ChunkedLocalAttentionSpec, KVCacheConfig, KVCacheGroup, KVCacheSpec
from octavo.words.messages import CachedRequestData, NewRequestData, SchedulerOutput
from tests.fakes import counting_token, full_attention, make_message, sliding_window


def executor_for(*specs: KVCacheSpec, num_blocks: int = 10, **options: Any) -> SimulatedExecutor:
    executor = SimulatedExecutor({}, **({"next_token": counting_token} | options))
    executor.initialize_from_config(
        KVCacheConfig(
            num_blocks=num_blocks,
            groups=tuple(KVCacheGroup(layer_names=(f"layer{i}",), spec=spec) for i, spec in enumerate(specs)),  # type: ignore[arg-type]
            tensors=(),
            scheduler_block_size=4,
            hash_block_size=4,
            max_model_len=64,
        )
    )
    return executor


def new(request_id: str, prompt: Any, *block_ids: list[int], num_computed: int = 0, **params: Any) -> NewRequestData:
    message = make_message(request_id, prompt, **params)
    return NewRequestData(
        request_id=request_id,
        prompt_token_ids=message.prompt_token_ids,
        output_token_ids=message.output_token_ids,
        sampling=message.sampling,
        block_ids=block_ids,
        num_computed_tokens=num_computed,
    )


def more(request_id: str, num_computed: int, *block_ids: list[int]) -> CachedRequestData:
    return CachedRequestData(request_id=request_id, new_block_ids=block_ids, num_computed_tokens=num_computed)


def step_of(step_id: int, *data: NewRequestData | CachedRequestData, tokens: dict[str, int], **rest: Any):  # type: ignore[no-untyped-def]
    return SchedulerOutput(
        step_id=step_id,
        new_requests=[item for item in data if isinstance(item, NewRequestData)],
        cached_requests=[item for item in data if isinstance(item, CachedRequestData)],
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=sum(tokens.values()),
        **rest,
    )


def run(executor: Executor, step: SchedulerOutput) -> Any:
    return executor.sample(executor.execute(step))


def test_a_chunk_gives_no_token_and_the_rest_of_the_prompt_gives_one():
    executor = executor_for(full_attention(4))
    result = run(executor, step_of(1, new("a", 6, [1, 2]), tokens={"a": 4}))
    assert (result.request_ids, result.sampled_token_ids) == (["a"], [[]])
    result = run(executor, step_of(2, more("a", 4, []), tokens={"a": 2}))
    assert result.sampled_token_ids == [[106]]


def test_tokens_are_the_same_in_every_process():
    assert [scattered_token("request", position) for position in range(3)] == [8409, 4431, 14069]


def test_right_drafts_are_accepted_up_to_the_first_wrong_one_and_new_ones_follow():
    executor = executor_for(full_attention(4), next_draft=counting_token, num_draft_tokens=2)
    result = run(executor, step_of(1, new("a", 4, [1, 2, 3]), tokens={"a": 4}))
    assert result.draft_token_ids == {"a": [105, 106]}
    result = run(executor, step_of(2, more("a", 4, []), tokens={"a": 4}, draft_token_ids={"a": [105, 999, 107]}))
    assert result.sampled_token_ids == [[105, 106]]
    assert result.draft_token_ids == {"a": [107, 108]}
    result = run(executor, step_of(3, more("a", 6, []), tokens={"a": 1}))
    assert result.sampled_token_ids == [[107]]


def test_logprobs_are_given_to_who_asked():
    executor = executor_for(full_attention(4))
    data = (new("a", [1, 2, 3], [1], prompt_logprobs=1, logprobs=0), new("b", 3, [2]))
    result = run(executor, step_of(1, *data, tokens={"a": 3, "b": 3}))
    assert [row.token_ids for row in result.prompt_logprobs["a"]] == [[2], [3]]
    assert [row.token_ids for row in result.logprobs[0]] == [[103]]
    assert result.logprobs[1] is None


def test_prompt_logprobs_come_chunk_by_chunk_without_a_gap():
    executor = executor_for(full_attention(4))
    rows = []
    rows += run(executor, step_of(1, new("a", range(6), [1, 2], prompt_logprobs=0), tokens={"a": 3})).prompt_logprobs[
        "a"
    ]
    rows += run(executor, step_of(2, more("a", 3, []), tokens={"a": 3})).prompt_logprobs["a"]
    assert [row.token_ids[0] for row in rows] == [1, 2, 3, 4, 5]


def test_steps_take_their_time_one_after_the_other():
    executor = executor_for(full_attention(4), step_seconds=0.02, max_steps_in_flight=2)
    start = time.monotonic()
    first = executor.execute(step_of(1, new("a", 4, [1, 2]), tokens={"a": 4}))
    second = executor.execute(step_of(2, more("a", 4, []), tokens={"a": 1}))
    executor.sample(first)
    executor.sample(second)
    assert time.monotonic() - start >= 0.04


def test_results_are_taken_in_order_and_the_queue_is_bounded():
    executor = executor_for(full_attention(4), max_steps_in_flight=2)
    executor.execute(step_of(1, new("a", 4, [1, 2]), tokens={"a": 4}))
    second = executor.execute(step_of(2, more("a", 4, []), tokens={"a": 1}))
    with pytest.raises(InconsistentStep, match="2 steps are in flight already"):
        executor.execute(step_of(3, more("a", 5, []), tokens={"a": 1}))
    with pytest.raises(InconsistentStep, match="step 2 is not the oldest in flight"):
        executor.sample(second)


def test_it_has_no_workers():
    executor = executor_for(full_attention(4))
    with pytest.raises(UnsupportedError, match="no workers"):
        executor.collective_rpc("anything")
    executor.check_health()
    executor.shutdown()
    executor.shutdown()


# ---- what it refuses to believe ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (step_of(2, more("b", 4, []), tokens={"b": 1}), "'b' is unknown"),
        (step_of(2, new("a", 4, [3]), tokens={"a": 4}), "'a' is new but known"),
        (step_of(2, more("a", 3, []), tokens={"a": 1}), "has 4 computed tokens, not 3"),
        (step_of(2, more("a", 4, []), tokens={"a": 2}), "has 5 tokens and 0 drafts, not 6"),
        (step_of(2, more("a", 4, []), tokens={"a": 1}, draft_token_ids={"a": [1]}), "5 tokens and 1 drafts, not 5"),
        (step_of(2, more("a", 4, []), tokens={"a": 1, "c": 1}), "but tells of"),
        (step_of(2, tokens={"a": 1}), "but tells of"),
        (step_of(2, tokens={}, finished_request_ids=["x"]), "drops 'x', which is unknown"),
        (step_of(2, tokens={}, preempted_request_ids=["x"]), "drops 'x', which is unknown"),
        (step_of(2, tokens={}, finished_request_ids=["a"], preempted_request_ids=["a"]), "drops 'a'"),
    ],
)
def test_a_step_that_contradicts_what_is_known_is_refused(step: SchedulerOutput, message: str):
    executor = executor_for(full_attention(4))
    run(executor, step_of(1, new("a", 4, [1, 2]), tokens={"a": 4}))
    with pytest.raises(InconsistentStep, match=message):
        executor.execute(step)


def test_a_wrong_total_is_refused():
    step = step_of(1, new("a", 4, [1]), tokens={"a": 4})
    step.total_num_scheduled_tokens = 5
    with pytest.raises(InconsistentStep, match="the total is not the sum"):
        executor_for(full_attention(4)).execute(step)


@pytest.mark.parametrize("block_ids", [[1], [1, 0]])
def test_tokens_without_a_block_are_refused(block_ids: list[int]):
    with pytest.raises(InconsistentStep, match="'a' has no block for position 4 in group 0"):
        executor_for(full_attention(4)).execute(step_of(1, new("a", 5, block_ids), tokens={"a": 5}))


def test_two_requests_that_write_one_block_in_a_step_are_refused():
    with pytest.raises(InconsistentStep, match="'a' and 'b' write block 1"):
        executor_for(full_attention(4)).execute(step_of(1, new("a", 2, [1]), new("b", 2, [1]), tokens={"a": 2, "b": 2}))


def test_a_prefix_that_was_never_computed_is_refused():
    with pytest.raises(
        InconsistentStep, match="'a' reads position 0 in block 1 of group 0, which holds something else"
    ):
        executor_for(full_attention(4)).execute(step_of(1, new("a", 8, [1, 2], num_computed=4), tokens={"a": 4}))


def test_a_prefix_computed_for_the_same_tokens_is_accepted_also_in_the_same_step():
    executor = executor_for(full_attention(4))
    data = (new("a", range(6), [1, 2]), new("b", range(6), [1, 3], num_computed=4))
    assert run(executor, step_of(1, *data, tokens={"a": 6, "b": 2})).sampled_token_ids == [[106], [106]]


def test_a_block_given_to_another_while_it_is_still_read_is_refused():
    executor = executor_for(full_attention(4))
    run(executor, step_of(1, new("a", 4, [1, 2]), tokens={"a": 4}))
    run(executor, step_of(2, new("b", 4, [1]), tokens={"b": 4}))
    with pytest.raises(InconsistentStep, match="'a' reads position 0 in block 1"):
        executor.execute(step_of(3, more("a", 4, []), tokens={"a": 1}))


def resume_with_leading_blocks_gone(spec: KVCacheSpec, num_gone: int) -> list[list[int]]:
    """Compute 12 tokens in blocks 1..3, then position 12 with the first blocks replaced by the null block."""
    executor = executor_for(spec)
    run(executor, step_of(1, new("a", 12, [1, 2, 3]), tokens={"a": 12}))
    back = new("a", 12, [0] * num_gone + [1, 2, 3, 4][num_gone:], num_computed=12, output_token_ids=[112])
    return run(executor, step_of(2, back, tokens={"a": 1}, preempted_request_ids=["a"])).sampled_token_ids


@pytest.mark.parametrize(
    ("spec", "num_may_go"),
    [
        (sliding_window(6, 4), 1),  # Position 12 reads 7 and later.
        (ChunkedLocalAttentionSpec(block_size=4, num_kv_heads=1, head_size=1, dtype="int8", chunk_size=8), 2),
        (full_attention(4), 0),
    ],
)
def test_blocks_outside_the_window_may_be_gone_but_none_inside(spec: KVCacheSpec, num_may_go: int):
    assert resume_with_leading_blocks_gone(spec, num_may_go) == [[113]]
    with pytest.raises(InconsistentStep, match="has no block"):
        resume_with_leading_blocks_gone(spec, num_may_go + 1)


def test_blocks_of_an_ended_request_that_is_in_flight_are_not_to_be_given_away():
    executor = executor_for(full_attention(4), max_steps_in_flight=2)
    executor.execute(step_of(1, new("a", 4, [1]), tokens={"a": 4}))
    with pytest.raises(InconsistentStep, match="block 1 of 'a', which has ended but is in flight, was given to 'b'"):
        executor.execute(step_of(2, new("b", 4, [1]), tokens={"b": 4}, finished_request_ids=["a"]))


def test_without_checks_only_the_tokens_are_kept():
    executor = executor_for(full_attention(4), check=False)
    assert run(executor, step_of(1, new("a", 4, [1]), tokens={"a": 4})).sampled_token_ids == [[104]]
    assert run(executor, step_of(2, more("a", 4, []), tokens={"a": 1})).sampled_token_ids == [[105]]
