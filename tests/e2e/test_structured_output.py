"""Constrained answers of a whole engine: each has its shape, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from octavo import LLM, AsyncLLM, CompletionOutput, EngineArgs, SamplingParams, StructuredOutputParams
from octavo.control.structured_output.manager import MAX_CACHED_GRAMMARS
from octavo.words.errors import RequestError
from octavo.words.sampling_params import RequestOutputKind
from tests.memory import anonymous_bytes
from tests.schemas import schemas_of_huge_bounds
from tests.succ import BOS, EOS
from tests.tiny_models import save_tiny_model

DIGIT = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}
CLOSED_DIGIT = {**DIGIT, "additionalProperties": False}


@pytest.fixture(scope="module")
def counting(succ: Path) -> Iterator[LLM]:
    """The model that counts through the bytes: hot enough, it says anything."""
    with LLM(str(succ), block_size=16, num_gpu_blocks_override=200) as llm:
        yield llm


def answer(llm: LLM, prompt: str = "A", shape: dict[str, Any] | None = None, **params: Any) -> CompletionOutput:
    wanted = None if shape is None else StructuredOutputParams(**shape)
    sampling = SamplingParams(**{"temperature": 2.0, "seed": 1, "max_tokens": 64, **params}, structured_outputs=wanted)
    return llm.generate(prompt, sampling, use_tqdm=False)[0].outputs[0]


@pytest.fixture(scope="module")
def random(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    """A model of random weights, of the same tokens: it wants nothing in particular."""
    folder = save_tiny_model(tmp_path_factory.mktemp("random"), "qwen3", bos_token_id=BOS, eos_token_id=EOS)
    with LLM(str(folder), tokenizer=str(succ), dtype="float32", max_model_len=512) as llm:
        yield llm


@pytest.fixture(params=["counting", "random"])
def weak(request: pytest.FixtureRequest) -> LLM:
    """Each of the two that write no JSON of their own."""
    return cast("LLM", request.getfixturevalue(request.param))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("schema", [DIGIT, CLOSED_DIGIT])
def test_so05_a_weak_model_ends_its_json(weak: LLM, schema: dict[str, Any], temperature: float) -> None:
    found = answers(weak, {"json": schema}, temperature=temperature, max_tokens=64)
    assert len(found) == 20
    for choice in found:
        assert choice.finish_reason == "stop"
        assert json.loads(choice.text)["a"] in range(10)
        assert not re.search(r"\s{9}", choice.text)


def test_so13_a_choice_is_one_of_the_list(weak: LLM) -> None:
    for texts in (["🐈", "犬"], ["a", "ab"]):
        for temperature in (0.0, 2.0):
            found = answers(weak, {"choice": texts}, temperature=temperature)
            assert all(choice.text in texts and choice.finish_reason == "stop" for choice in found)
    assert "ab" in {choice.text for choice in found}, "the longer one, too"


def test_so13_no_choice_is_none(weak: LLM) -> None:
    with pytest.raises(RequestError, match="at least one text"):
        answer(weak, shape={"choice": []})


def answers(llm: LLM, shape: dict[str, Any], **params: Any) -> list[CompletionOutput]:
    """Of 20 seeds."""
    wanted = StructuredOutputParams(**shape)
    sampling = [SamplingParams(seed=seed, structured_outputs=wanted, **params) for seed in range(20)]
    return [each.outputs[0] for each in llm.generate(["A"] * 20, sampling, use_tqdm=False)]


def test_so15_what_max_tokens_cuts_off_says_length(counting: LLM) -> None:
    choice = answer(counting, shape={"json": CLOSED_DIGIT}, max_tokens=3)
    assert (choice.finish_reason, len(choice.token_ids)) == ("length", 3)


def test_json_that_would_be_cut_off_is_whole_where_its_last_tokens_close_it(counting: LLM) -> None:
    schema = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    for seed in range(5):
        cut = answer(counting, shape={"json": schema, "closing_tokens": 0}, seed=seed, max_tokens=40)
        for closing in ({}, {"closing_tokens": 12}):
            whole = answer(counting, shape={"json": schema, **closing}, seed=seed, max_tokens=40)
            shared = len(os.path.commonprefix([cut.text, whole.text]))
            if cut.finish_reason == "length":
                assert shared >= 28, "before its last tokens it is as it would be"
            assert whole.finish_reason == "stop" and isinstance(json.loads(whole.text), list)
    with pytest.raises(RequestError, match="closing_tokens"):
        answer(counting, shape={"regex": "a*", "closing_tokens": 12})


def test_a_grammar_that_can_only_end_ends_the_request_whatever_min_tokens_says(counting: LLM) -> None:
    choice = answer(counting, shape={"regex": "[xy]{3}"}, min_tokens=20, ignore_eos=True)
    assert re.fullmatch("[xy]{3}", choice.text) and len(choice.token_ids) == 3
    assert choice.finish_reason == "stop" and choice.stop_reason is None


def test_so12_many_different_schemas_leave_a_bounded_cache_little_memory_and_no_file(
    counting: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("HOME", "XDG_CACHE_HOME", "OCTAVO_CACHE_ROOT", "TMPDIR"):
        monkeypatch.setenv(folder, str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def answers_to(numbers: range) -> list[str]:
        shapes = [StructuredOutputParams(json=numbered(number), disable_any_whitespace=True) for number in numbers]
        params = [SamplingParams(temperature=0.0, max_tokens=6, structured_outputs=shape) for shape in shapes]
        return [each.outputs[0].text for each in counting.generate(["A"] * len(params), params, use_tqdm=False)]

    answers_to(range(100))
    before = anonymous_bytes()
    for start in range(100, 2_100, 100):
        assert answers_to(range(start, start + 100)) == [f'{{"{number:04}' for number in range(start, start + 100)]
    assert anonymous_bytes() - before < 100 << 20
    assert len(counting._engine._client._core.structured_output._cache) == MAX_CACHED_GRAMMARS  # type: ignore[attr-defined]
    assert list(tmp_path.rglob("*")) == []


def numbered(number: int) -> dict[str, Any]:
    """A schema of its own: kept, 2,000 of them would take 170 MiB."""
    names = [f"{number:04}", *(f"{number:04}{letter}" for letter in "abcd")]
    return {
        "type": "object",
        "properties": {name: {"type": "string", "maxLength": 20} for name in names},
        "required": names[:1],
        "additionalProperties": False,
    }


def test_different_constraints_and_none_share_a_batch_and_logprobs_stay_the_models(counting: LLM) -> None:
    shapes: list[dict[str, Any] | None] = [
        {"json": CLOSED_DIGIT},
        None,
        {"regex": "[0-9]{4}"},
        {"choice": ["yes"]},
        None,
    ]
    alone = [answer(counting, "A", shape, logprobs=2) for shape in shapes]
    params = [
        SamplingParams(
            temperature=2.0,
            seed=1,
            max_tokens=64,
            logprobs=2,
            structured_outputs=None if shape is None else StructuredOutputParams(**shape),
        )
        for shape in shapes
    ]
    together = [output.outputs[0] for output in counting.generate(["A"] * 5, params, use_tqdm=False)]
    for one, other in zip(alone, together, strict=True):
        assert (one.text, list(one.token_ids), one.logprobs) == (other.text, list(other.token_ids), other.logprobs)
    assert together[1].token_ids == together[4].token_ids, "an unconstrained neighbour is as without them"
    assert re.fullmatch("[0-9]{4}", together[2].text) and together[3].text == "yes"
    first = together[3].logprobs
    assert first is not None and first[0][ord("y")].rank > 1, "the model did not want to say yes"


def test_choices_of_one_request_keep_the_shape_each(counting: LLM) -> None:
    params = SamplingParams(
        n=3, seed=5, temperature=2.0, max_tokens=16, structured_outputs=StructuredOutputParams(regex="[a-z]{5}")
    )
    texts = [choice.text for choice in counting.generate("A", params, use_tqdm=False)[0].outputs]
    assert all(re.fullmatch("[a-z]{5}", text) for text in texts) and len(set(texts)) == 3


@pytest.mark.parametrize("shape", [{"json": {"type": "bogus"}}, {"regex": "((("}, {"json": "{"}])
def test_so03_a_malformed_constraint_is_refused_and_harms_nobody(counting: LLM, shape: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="structured_outputs"):
        answer(counting, shape=shape)
    assert list(answer(counting, temperature=0.0, max_tokens=4).token_ids) == [66, 67, 68, 69]


TOO_MUCH: list[dict[str, Any]] = [
    {"regex": "a{1000000}"},
    {"regex": "b?(a{1000}){1000}"},
    {"json": {"type": "string", "pattern": "^(ab){100000}$"}},
    {"json": {"type": "array", "minItems": 10**6, "items": {"const": 1}}},
    {"json": {"type": "integer", "multipleOf": 1_000_003}},
    {"json": False},
    {"grammar": 'start: A{1000}\nA: "a"{1000}'},
    {"grammar": 'root ::= "a"{1000000}'},
]


def test_so08_what_demands_too_much_is_refused_while_a_stream_goes_on_as_without_it(succ: Path, counting: LLM) -> None:
    params = SamplingParams(temperature=2.0, seed=3, max_tokens=300, ignore_eos=True, detokenize=False)
    expected = counting.generate("A", params, use_tqdm=False)[0].outputs[0].token_ids
    engine = AsyncLLM.from_engine_args(EngineArgs(str(succ), block_size=16, num_gpu_blocks_override=200))

    async def refused(shape: dict[str, Any]) -> None:
        with pytest.raises(RequestError, match="structured_outputs"):
            async for _ in engine.generate("A", SamplingParams(structured_outputs=StructuredOutputParams(**shape))):
                raise AssertionError("it was not refused")

    async def run() -> None:
        left = list(TOO_MUCH)
        async for output in engine.generate("A", params):
            if left:
                await refused(left.pop())
            last = output
        assert not left and last.outputs[0].token_ids == expected

    try:
        asyncio.run(asyncio.wait_for(run(), 60))
    finally:
        engine.shutdown()


def test_so08_huge_bounds_keep_no_stream_waiting(succ: Path) -> None:
    engine = AsyncLLM.from_engine_args(EngineArgs(str(succ), block_size=16, num_gpu_blocks_override=200))
    endless = SamplingParams(temperature=0.0, max_tokens=2000, ignore_eos=True, output_kind=RequestOutputKind.DELTA)
    moments: list[float] = []

    async def stream() -> None:
        while True:
            async for _ in engine.generate("A", endless):
                moments.append(time.monotonic())

    async def answer_to(schema: Any) -> str:
        shape = StructuredOutputParams(json=schema)
        try:
            async for output in engine.generate("A", SamplingParams(max_tokens=20, structured_outputs=shape)):
                last = output
        except RequestError:
            return "refused"
        return str(last.outputs[0].finish_reason)

    async def run() -> dict[str, str]:
        streaming = asyncio.create_task(stream())
        while not moments:
            await asyncio.sleep(0.01)
        answers = {name: await answer_to(schema) for name, schema in schemas_of_huge_bounds().items()}
        num_before = len(moments)
        while len(moments) == num_before:
            await asyncio.sleep(0.01)
        streaming.cancel()
        await asyncio.wait([streaming])
        return answers

    try:
        answers = asyncio.run(asyncio.wait_for(run(), 120))
    finally:
        engine.shutdown()
    must = {"a text that must be long", "a list that must be long"}
    assert {name for name, reason in answers.items() if reason == "refused"} == must
    assert set(answers.values()) <= {"refused", "stop", "length"}
    assert max(np.diff(moments)) < 10  # five times what the case allows: no speed


@pytest.mark.slow
def test_preemption_and_a_process_of_its_own_change_nothing(succ: Path) -> None:
    params = [
        SamplingParams(
            temperature=2.0, seed=seed, max_tokens=40, structured_outputs=StructuredOutputParams(regex="[a-z ]{40}")
        )
        for seed in range(8)
    ]
    prompts = [chr(65 + index) * 30 for index in range(8)]

    def texts(**options: Any) -> tuple[list[str], float]:
        with LLM(str(succ), block_size=16, **options) as llm:
            found = [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]
            return found, sum(each.value for each in llm.get_metrics() if each.name == "vllm:num_preemptions")

    plain, _ = texts(num_gpu_blocks_override=200)
    preempted, num_preemptions = texts(num_gpu_blocks_override=14, max_model_len=96)
    elsewhere, _ = texts(num_gpu_blocks_override=200, multiprocess=True)
    assert num_preemptions > 0
    assert all(re.fullmatch("[a-z ]{40}", text) for text in plain)
    assert plain == preempted == elsewhere
