"""Several steps at once on the device: the same tokens, and an end where there is one."""

from __future__ import annotations

import pytest

from tests.device.worker.test_model_runner import PROMPTS
from tests.device.worker.tiny_model import POISON, Driver, make_runner

PARAMS = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 3},
    "filtered": {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "seed": 4},
    "shaped": {"temperature": 0.9, "seed": 5, "repetition_penalty": 1.3, "min_tokens": 6, "logprobs": 2},
}


def started(kind: str) -> Driver:
    driver = Driver(make_runner())
    for number, name in enumerate(PROMPTS):
        driver.add(name, PROMPTS[name], **PARAMS[kind if number != 1 else "greedy"])
    driver.step(**dict.fromkeys(PROMPTS, 0))
    return driver


@pytest.mark.parametrize("kind", PARAMS)
def test_tokens_are_those_of_single_steps(kind: str) -> None:
    single, burst = started(kind), started(kind)
    results = [single.step(**dict.fromkeys(PROMPTS, 1)) for _ in range(11)]
    first, second = burst.burst(7, *PROMPTS), burst.burst(4, *PROMPTS)
    assert (first.num_decode_steps, second.num_decode_steps) == (7, 4)
    assert [len(ids) for ids in first.sampled_token_ids] == [7, 7, 7]
    for name in PROMPTS:
        assert burst.outputs(name) == single.outputs(name)
    for row in range(len(PROMPTS)):
        rows = [each.logprobs[row] for each in results]
        expected = None if rows[0] is None else [one for each in rows for one in each or ()]
        assert [*(first.logprobs[row] or ()), *(second.logprobs[row] or ())] == (expected or [])


def test_a_burst_stops_when_all_requests_have_ended_and_not_before() -> None:
    plain = started("greedy")
    outputs = plain.burst(9, "a", "b").sampled_token_ids
    end = [ids[number] for ids, number in zip(outputs, (2, 5), strict=True)]
    assert end[0] not in outputs[0][:2] and end[1] not in outputs[1][:5]
    driver = Driver(make_runner())
    for name, end_id in zip("ab", end, strict=True):
        driver.add(name, PROMPTS[name], stop_token_ids=[end_id])
    driver.step(a=0, b=0)
    result = driver.burst(9, "a", "b")
    assert result.num_decode_steps == 6
    assert result.sampled_token_ids == [ids[:6] for ids in outputs]


def poisoned(bias: dict[int, float]) -> Driver:
    """Request ``bad`` chooses each of these once, by their bias; after POISON its logits are NaN."""
    driver = Driver(make_runner())
    driver.add("a", PROMPTS["a"], logprobs=1)
    driver.add("bad", PROMPTS["b"], allowed_token_ids=list(bias), logit_bias=bias, repetition_penalty=1e6)
    driver.step(a=0, bad=0)
    return driver


def test_who_fails_at_once_is_told_and_the_others_have_their_token() -> None:
    driver = poisoned({POISON: 0.0})
    result = driver.burst(5, "a", "bad")
    assert list(result.failed) == ["bad"]
    assert result.num_decode_steps == 1
    assert [len(ids) for ids in result.sampled_token_ids] == [1, 0]


def test_who_fails_in_the_middle_is_told_by_the_next_burst_and_harms_nobody() -> None:
    driver = poisoned({**dict.fromkeys(range(34, POISON), 100.0), POISON: 40.0})
    result = driver.burst(9, "a", "bad")
    assert result.failed == {}
    assert result.num_decode_steps == 6
    assert [len(ids) for ids in result.sampled_token_ids] == [6, 5]
    result = driver.burst(5, "a", "bad")
    assert list(result.failed) == ["bad"]
    assert [len(ids) for ids in result.sampled_token_ids] == [1, 0]
    driver.end("bad")
    driver.burst(3, "a")
    alone = started("greedy")
    alone.burst(len(driver.outputs("a")) - 1, "a")
    assert driver.outputs("a") == alone.outputs("a")
