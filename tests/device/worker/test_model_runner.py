from __future__ import annotations

import math

import pytest
import torch

from octavo.words.messages import SchedulerOutput
from tests.device.worker.tiny_model import POISON, Driver, greedy, kv_config, make_runner, reference_logits

PROMPTS = {"a": [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], "b": [7], "c": [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2]}
NUM_OUTPUTS = 12


def decode(driver: Driver, *names: str, steps: int = NUM_OUTPUTS) -> None:
    for _ in range(steps):
        driver.step(**dict.fromkeys(names, 0))


def test_a_prompt_and_its_continuation_match_a_model_without_a_cache() -> None:
    driver = Driver(make_runner())
    driver.add("c", PROMPTS["c"])
    decode(driver, "c")
    assert driver.outputs("c") == greedy(PROMPTS["c"], NUM_OUTPUTS)


def test_requests_in_one_batch_do_not_see_each_other() -> None:
    driver = Driver(make_runner())
    for name, prompt in PROMPTS.items():
        driver.add(name, prompt)
    decode(driver, *PROMPTS)
    for name, prompt in PROMPTS.items():
        assert driver.outputs(name) == greedy(prompt, NUM_OUTPUTS)


@pytest.mark.parametrize("chunk", [1, 3, 4, 7])
def test_chunks_of_a_prompt_bring_no_token_before_the_last_and_then_the_same(chunk: int) -> None:
    driver = Driver(make_runner())
    driver.add("b", PROMPTS["b"])
    driver.add("c", PROMPTS["c"])
    length = len(PROMPTS["c"])
    for start in range(0, length, chunk):
        size = min(chunk, length - start)
        result = driver.step(c=size, b=0)
        assert len(result.sampled_token_ids[0]) == (1 if start + size == length else 0)
    decode(driver, "c", steps=NUM_OUTPUTS - 1)
    assert driver.outputs("c") == greedy(PROMPTS["c"], NUM_OUTPUTS)
    assert driver.outputs("b") == greedy(PROMPTS["b"], len(driver.outputs("b")))


def test_a_preempted_request_goes_on_with_the_same_tokens() -> None:
    driver = Driver(make_runner())
    driver.add("a", PROMPTS["a"], temperature=1.0, seed=11)
    driver.add("b", PROMPTS["b"], temperature=1.0, seed=12)
    decode(driver, "a", "b")
    expected = driver.outputs("a")

    driver = Driver(make_runner())
    driver.add("a", PROMPTS["a"], temperature=1.0, seed=11)
    driver.add("b", PROMPTS["b"], temperature=1.0, seed=13)
    decode(driver, "a", "b", steps=5)
    driver.preempt("a")
    decode(driver, "b", steps=2)
    driver.step(a=4, b=0)
    driver.step(b=0, a=3)
    decode(driver, "a", steps=NUM_OUTPUTS - 5)
    assert driver.outputs("a") == expected


def test_slots_are_used_again_and_keep_nothing() -> None:
    driver = Driver(make_runner(max_num_requests=2))
    for round_ in range(5):
        driver.add(f"x{round_}", PROMPTS["a"], allowed_token_ids=[round_], repetition_penalty=2.0)
        driver.add(f"y{round_}", PROMPTS["b"])
        driver.step(**{f"x{round_}": 0, f"y{round_}": 0})
        assert driver.outputs(f"x{round_}") == [round_]
        assert driver.outputs(f"y{round_}") == greedy(PROMPTS["b"], 1)
        driver.end(f"x{round_}")
        driver.end(f"y{round_}")


def test_a_step_without_tokens_only_takes_note_of_who_ended() -> None:
    runner = make_runner(max_num_requests=1)
    driver = Driver(runner)
    driver.add("a", PROMPTS["a"])
    driver.step(a=0)
    output = SchedulerOutput(step_id=7, finished_request_ids=["a", "never seen"])
    result = runner.sample(runner.execute(output))
    assert (result.step_id, result.request_ids, result.sampled_token_ids) == (7, [], [])
    driver = Driver(runner)
    driver.add("c", PROMPTS["c"])
    driver.step(c=0)
    assert driver.outputs("c") == greedy(PROMPTS["c"], 1)


@pytest.mark.parametrize("block_size", [1, 3, 5, 16, 48, 64, 128])
def test_the_block_size_does_not_show_even_where_a_block_is_several_kernel_blocks(block_size: int) -> None:
    config = kv_config(block_size, num_blocks=max(8, 256 // block_size))
    driver = Driver(make_runner(config), config)
    driver.add("a", PROMPTS["a"])
    driver.add("c", PROMPTS["c"] * 3)
    driver.step(a=0, c=20)
    decode(driver, "a", "c")
    assert driver.outputs("a") == greedy(PROMPTS["a"], NUM_OUTPUTS + 1)
    assert driver.outputs("c") == greedy(PROMPTS["c"] * 3, NUM_OUTPUTS)


def test_a_request_longer_than_the_first_columns_grows_the_tables() -> None:
    config = kv_config(block_size=2, num_blocks=400, max_model_len=300)
    driver = Driver(make_runner(config), config)
    prompt = [i % 37 for i in range(255)]
    driver.add("long", prompt)
    driver.add("b", PROMPTS["b"])
    driver.step(long=200, b=0)
    decode(driver, "long", "b", steps=4)
    assert driver.outputs("long") == greedy(prompt, 4)
    assert driver.outputs("b") == greedy(PROMPTS["b"], 5)


def test_a_request_with_nan_logits_fails_alone() -> None:
    driver = Driver(make_runner())
    driver.add("a", PROMPTS["a"], logprobs=1)
    driver.add("bad", [1, POISON])
    driver.add("b", PROMPTS["b"])
    result = driver.step(a=0, bad=0, b=0)
    assert list(result.failed) == ["bad"]
    assert "NaN" in result.failed["bad"]
    assert result.sampled_token_ids[1] == []
    driver.end("bad")
    decode(driver, "a", "b", steps=3)
    assert driver.outputs("a") == greedy(PROMPTS["a"], 4)
    assert driver.outputs("b") == greedy(PROMPTS["b"], 4)


def test_logprobs_are_those_of_the_model() -> None:
    driver = Driver(make_runner())
    driver.add("a", PROMPTS["a"], logprobs=3)
    driver.add("b", PROMPTS["b"])
    result = driver.step(b=0, a=0)
    expected = torch.log_softmax(reference_logits(PROMPTS["a"])[-1], -1)
    assert result.logprobs[0] is None
    assert result.logprobs[1] is not None
    (row,) = result.logprobs[1]
    assert row.token_ids[1:] == expected.topk(3).indices.tolist()
    assert row.logprobs == pytest.approx(expected[row.token_ids].tolist(), abs=1e-4)


@pytest.mark.parametrize("chunk", [1, 4, 7, 16, 17])
@pytest.mark.parametrize("num_best", [0, 2, -1])
def test_prompt_logprobs_are_the_same_in_chunks_and_whole(chunk: int, num_best: int) -> None:
    prompt = PROMPTS["c"]
    driver = Driver(make_runner())
    driver.add("b", PROMPTS["b"])
    driver.add("c", prompt, prompt_logprobs=num_best, logprobs=0)
    rows = []
    for start in range(0, len(prompt), chunk):
        result = driver.step(b=0, c=min(chunk, len(prompt) - start))
        assert "b" not in result.prompt_logprobs
        rows += result.prompt_logprobs.get("c", [])
    logprobs = torch.log_softmax(reference_logits(prompt), -1)
    assert len(rows) == len(prompt) - 1
    for position, row in enumerate(rows):
        assert row.token_ids[0] == prompt[position + 1]
        assert len(row.token_ids) == 1 + (40 if num_best == -1 else num_best)
        assert row.logprobs == pytest.approx(logprobs[position, row.token_ids].tolist(), abs=1e-4)
        better = (logprobs[position] > logprobs[position, prompt[position + 1]]).sum()
        assert row.rank == better + 1
    assert driver.step(c=0).prompt_logprobs == {}


def test_a_prompt_that_cannot_be_scored_fails_alone() -> None:
    driver = Driver(make_runner())
    driver.add("bad", [1, POISON, 2], prompt_logprobs=1)
    driver.add("a", PROMPTS["a"], prompt_logprobs=1)
    result = driver.step(bad=0, a=0)
    assert list(result.failed) == ["bad"]
    assert "prompt" in result.failed["bad"]
    assert len(result.prompt_logprobs["a"]) == len(PROMPTS["a"]) - 1
    assert all(math.isfinite(value) for row in result.prompt_logprobs["a"] for value in row.logprobs)


def test_blocks_are_copied_and_cleared_before_the_step() -> None:
    config = kv_config()
    runner = make_runner(config)
    driver = Driver(runner, config)
    driver.add("a", PROMPTS["a"][:4])
    driver.step(a=0)  # blocks 1 (full) and 2 (window)
    cache = runner._kv_cache.layers["full"]
    assert cache[:, 1].abs().min() > 0
    runner.execute(SchedulerOutput(step_id=9, block_copies=[(1, 30)], blocks_to_zero=[1]))
    assert torch.equal(cache[:, 1], torch.zeros_like(cache[:, 1]))
    assert cache[:, 30].abs().min() > 0
