"""Processors of the user, budgets of thought and repetition: what each ends or changes, and that others see nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RepetitionDetectionParams, RequestOutput, SamplingParams
from octavo.words.errors import ConfigError, EngineError, RequestError

ONLY = "tests.own_logits_processors:OnlyToken"
THINKS = "{% for message in messages %}{{ message['content'] }}{% endfor %}<think>"
SMALL: dict[str, Any] = {"max_model_len": 256, "kv_cache_memory_bytes": "4MiB", "disable_log_stats": True}
LLAMA = [0xF0, 0x9F, 0xA6, 0x99]


@pytest.fixture(scope="module", params=["native", "reference"])
def llm(request: pytest.FixtureRequest, succ: Path) -> Iterator[LLM]:
    with LLM(str(succ), **SMALL, kernels=request.param, logits_processors=ONLY, chat_template=THINKS) as llm:
        yield llm


def ask(llm: LLM, *asked: tuple[str, dict[str, Any]]) -> list[RequestOutput]:
    common = {"temperature": 0.0, "max_tokens": 12}
    params = [SamplingParams(**{**common, **each}) for _, each in asked]
    return llm.generate([prompt for prompt, _ in asked], params, use_tqdm=False)


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [output.outputs[0].text for output in outputs]


def counter(llm: LLM, name: str) -> int:
    counters: dict[str, int] = llm.collective_rpc("sampler_counters")[0]
    return counters[name]


def test_a_processor_gets_the_arguments_of_its_requests_and_no_other_is_touched(llm: LLM) -> None:
    before = counter(llm, ONLY)
    mine = {"extra_args": {"only_token": ord("x")}, "max_tokens": 3}
    assert texts(ask(llm, ("A", mine), ("A", {"max_tokens": 3}))) == ["xxx", "BCD"]
    assert counter(llm, ONLY) == before + 3
    assert texts(ask(llm, ("A", {"max_tokens": 3, "extra_args": {"other": 1}}))) == ["BCD"]  # slots are used again
    assert counter(llm, ONLY) == before + 3


def test_a_request_that_a_processor_does_not_take_fails_alone(llm: LLM) -> None:
    wrong = {"extra_args": {"only_token": 1_000_000}, "max_tokens": 3}
    refused, refused_too, other = ask(llm, ("A", wrong), ("B", wrong), ("A", {"max_tokens": 3}))
    assert other.outputs[0].text == "BCD"
    for output in (refused, refused_too):
        assert (output.outputs[0].finish_reason, output.outputs[0].is_refused) == ("error", True)
        assert ONLY in str(output.outputs[0].error) and "only_token must be below" in str(output.outputs[0].error)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("tests.own_logits_processors:Nothing", "cannot be made"),
        ("tests.own_logits_processors:NoProcessor", "has no add and no remove and no apply"),
        ("tests.own_logits_processors:Broken", "failed: RuntimeError: out of order"),
        ("tests.own_logits_processors:SaysNothing", "must return whether it changed anything"),
    ],
)
def test_a_wrong_processor_is_named_at_the_start(succ: Path, name: str, says: str) -> None:
    with pytest.raises((ConfigError, EngineError), match=says) as caught:
        LLM(str(succ), **SMALL, logits_processors=name)
    assert name in str(caught.value)


def test_arguments_that_nobody_reads_are_refused(succ: Path) -> None:
    with LLM(str(succ), **SMALL) as plain, pytest.raises(RequestError, match="--logits-processors"):
        ask(plain, ("A", {"extra_args": {"only_token": 1}}))
    with pytest.raises(RequestError, match="extra_args must hold plain values"):
        SamplingParams(extra_args={"model": object()})


def test_thoughts_end_after_their_budget_and_go_on_as_the_model_likes(llm: LLM) -> None:
    before = counter(llm, "thinking_budget")
    (output,) = ask(llm, ("a<think>", {"thinking_token_budget": 3}))
    assert output.outputs[0].text == "?@A</think>?"
    assert counter(llm, "thinking_budget") == before + len("</think>")
    assert texts(ask(llm, ("a<think>", {"thinking_token_budget": 0}))) == ["</think>?@AB"]


def test_a_budget_holds_from_where_thoughts_begin_and_only_there(llm: LLM) -> None:
    before = counter(llm, "thinking_budget")
    free = texts(ask(llm, ("A", {}), ("a<think>b</think>", {})))
    held = {"thinking_token_budget": 2}
    assert texts(ask(llm, ("A", held), ("a<think>b</think>", held))) == free  # none begun, and none left
    assert counter(llm, "thinking_budget") == before


def test_se15_a_budget_is_nobody_elses_also_in_a_slot_that_is_used_again(llm: LLM) -> None:
    (alone,) = texts(ask(llm, ("a<think>", {})))
    assert texts(ask(llm, ("a<think>", {"thinking_token_budget": 4}), ("a<think>", {})))[1] == alone
    assert texts(ask(llm, ("a<think>", {}), ("a<think>", {}))) == [alone, alone]


def test_a_model_without_thoughts_has_no_budget_for_them(succ: Path) -> None:
    with LLM(str(succ), **SMALL) as plain, pytest.raises(RequestError, match="thinking_token_budget"):
        ask(plain, ("A", {"thinking_token_budget": 3}))
    with pytest.raises(RequestError, match="thinking_token_budget"):
        SamplingParams(thinking_token_budget=-1)


def test_an_answer_that_repeats_itself_ends_and_says_why(llm: LLM) -> None:
    detection = RepetitionDetectionParams(min_pattern_size=2, max_pattern_size=6, min_count=3)
    prompt = {"prompt_token_ids": [LLAMA[-1]]}
    params = SamplingParams(temperature=0.0, max_tokens=40, repetition_detection=detection)
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    (choice,) = output.outputs
    assert choice.token_ids == LLAMA * 3
    assert (choice.finish_reason, choice.stop_reason) == ("repetition", "repetition")
    later = params.clone(min_tokens=14)
    assert len(llm.generate(prompt, later, use_tqdm=False)[0].outputs[0].token_ids) == 14
    (output,) = ask(llm, ("A", {"repetition_detection": detection}))
    assert output.outputs[0].finish_reason == "length"
    ended = [metric for metric in llm.get_metrics() if metric.labels.get("finished_reason") == "repetition"]
    assert sum(metric.value for metric in ended) >= 2
