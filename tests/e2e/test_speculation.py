"""Speculation changes no answer: each is, to the bit, that of an engine without it, and counters prove it ran.

Without batch-invariant kernels the numbers of a row depend on how many rows there are, so ids are equal where no two
candidates are closer than that, and logprobs to 1e-4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RequestOutput, SamplingParams, StructuredOutputParams
from octavo.words.errors import ConfigError
from tests.tiny_models import save_tiny_model

SPECULATE: dict[str, Any] = {"speculative_method": "ngram", "prompt_lookup_min": 1, "adaptive_speculation": False}
REPETITIVE = [[5, 6, 7, 8] * 6 + [5, 6], [9, 9, 9, 9, 9], list(range(20, 40)) * 2, [3]]
MANY = 32
FEW = [97, 98, 99, 100]
"""What is allowed: few enough tokens that even random ones repeat, and drafts are sometimes right."""

Ask = Callable[[LLM], list[RequestOutput]]


def metric(llm: LLM, name: str) -> float:
    return sum(each.value for each in llm.get_metrics() if each.name == name)


def said(outputs: list[RequestOutput]) -> list[Any]:
    """Everything that a caller sees of the answers, numbers and all."""
    return [
        (
            choice.text,
            choice.token_ids,
            choice.finish_reason,
            choice.stop_reason,
            [{token: (each.logprob, each.rank) for token, each in row.items()} for row in choice.logprobs or ()],
        )
        for output in outputs
        for choice in output.outputs
    ]


def ask(llm: LLM, prompts: list[list[int]] = REPETITIVE, **params: Any) -> list[RequestOutput]:
    common = {"temperature": 0.0, "max_tokens": MANY, "ignore_eos": True, "logprobs": 2, "allowed_token_ids": FEW}
    sampling = SamplingParams(**{**common, **params})
    return llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], sampling, use_tqdm=False)


@pytest.fixture(scope="module")
def options(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A random model."""
    folder = save_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama")
    sizes = {"max_model_len": 128, "block_size": 16, "num_gpu_blocks_override": 200}
    return {"model": str(folder), "tokenizer": str(succ), "dtype": "float32", **sizes}


@pytest.fixture(scope="module")
def plain(options: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**options) as llm:
        yield llm


@pytest.fixture(scope="module")
def speculating(options: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**options, **SPECULATE) as llm:
        yield llm


def assert_same(ours: list[RequestOutput], expected: list[RequestOutput], plan: Any) -> None:
    if plan.batch_invariant:
        assert said(ours) == said(expected)
        return
    for (text, ids, *why, rows), (their_text, their_ids, *their_why, their_rows) in zip(
        said(ours), said(expected), strict=True
    ):
        assert (text, ids, why) == (their_text, their_ids, their_why)
        for row, theirs in zip(rows, their_rows, strict=True):
            assert [value for value, _ in row.values()] == pytest.approx([value for value, _ in theirs.values()], 1e-4)


STYLES: dict[str, Ask] = {
    "greedy": ask,
    "sampling": partial(ask, temperature=0.7, seed=3),
    "filters": partial(ask, temperature=1.0, seed=4, top_k=3, top_p=0.9, min_p=0.01),
    "penalties": partial(ask, repetition_penalty=1.02, frequency_penalty=0.05, presence_penalty=0.05),
    "end and least tokens": partial(ask, ignore_eos=False, seed=5, min_tokens=9, allowed_token_ids=[*FEW, 257]),
    "bad words and bias": partial(ask, bad_words=["ab", "c"], logit_bias={98: 1.0}),
    "three choices": partial(ask, temperature=0.6, seed=6, n=3),
    "prompt logprobs": partial(ask, prompt_logprobs=1),
}


@pytest.mark.parametrize("style", STYLES)
def test_sd01_sa17_answers_and_logprobs_are_those_without_drafts(plain: LLM, speculating: LLM, style: str) -> None:
    drafted = metric(speculating, "vllm:spec_decode_num_draft_tokens")
    accepted = metric(speculating, "vllm:spec_decode_num_accepted_tokens")
    outputs = STYLES[style](speculating)
    assert_same(outputs, STYLES[style](plain), plain.info.plan)
    assert metric(speculating, "vllm:spec_decode_num_draft_tokens") > drafted
    assert metric(speculating, "vllm:spec_decode_num_accepted_tokens") > accepted


def test_right_drafts_save_steps_and_each_request_tells_of_its_own(plain: LLM, speculating: LLM) -> None:
    before = metric(plain, "octavo:num_steps"), metric(speculating, "octavo:num_steps")
    (reference,), (output,) = ask(plain, REPETITIVE[:1]), ask(speculating, REPETITIVE[:1])
    num_plain = metric(plain, "octavo:num_steps") - before[0]
    num_ours = metric(speculating, "octavo:num_steps") - before[1]
    assert output.metrics is not None and reference.metrics is not None
    assert (reference.metrics.num_draft_tokens, reference.metrics.num_accepted_tokens) == (0, 0)
    assert 0 < output.metrics.num_accepted_tokens <= output.metrics.num_draft_tokens
    assert num_ours < num_plain <= num_ours + output.metrics.num_accepted_tokens


def test_metrics_count_right_drafts_by_their_place(speculating: LLM) -> None:
    ask(speculating, REPETITIVE[:1])
    per_pos = [each for each in speculating.get_metrics() if each.name.endswith("accepted_tokens_per_pos")]
    assert [each.labels for each in per_pos] == [{"position": str(position)} for position in range(8)]
    values = [each.value for each in per_pos]
    assert values == sorted(values, reverse=True) and values[0] > 0
    assert sum(values) == metric(speculating, "vllm:spec_decode_num_accepted_tokens")


WAYS: dict[str, dict[str, Any]] = {
    "chunks": {"max_num_batched_tokens": 7, "max_num_seqs": 3},
    "little room": {"num_gpu_blocks_override": 6, "max_num_seqs": 4},
    "large blocks": {"block_size": 48, "num_gpu_blocks_override": 60},
    "small blocks": {"block_size": 1, "num_gpu_blocks_override": 400},
    "one draft": {"num_speculative_tokens": 1},
    "adapting": {"adaptive_speculation": True},
    "plain steps": {"enforce_eager": True},
    "another process": {"multiprocess": True},
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_however_the_engine_runs(options: dict[str, Any], plain: LLM, way: str) -> None:
    with LLM(**{**options, **SPECULATE, **WAYS[way]}) as llm:
        for style in ("greedy", "sampling"):
            assert_same(STYLES[style](llm), STYLES[style](plain), llm.info.plan)
        # How many drafts are worth their time is the machine's business.
        assert metric(llm, "vllm:spec_decode_num_accepted_tokens") > 0 or way == "adapting"
        if way == "little room":
            assert metric(llm, "vllm:num_preemptions") > 0


@pytest.mark.parametrize("logprobs", [None, 2])
def test_where_no_guess_is_found_steps_are_bursts_again(
    options: dict[str, Any], plain: LLM, logprobs: int | None
) -> None:
    never = {"speculative_method": "ngram", "prompt_lookup_min": 50, "prompt_lookup_max": 50, "max_burst_ms": 1000.0}
    with LLM(**options, **never) as llm:
        assert_same(
            ask(llm, logprobs=logprobs, temperature=0.7, seed=2),
            ask(plain, logprobs=logprobs, temperature=0.7, seed=2),
            llm.info.plan,
        )
        assert metric(llm, "octavo:num_burst_steps") > 2 * metric(llm, "octavo:num_bursts") > 0
        assert metric(llm, "octavo:spec_decode_num_trials") > 0 == metric(llm, "vllm:spec_decode_num_drafts")


def test_drafts_are_judged_by_what_bursts_say_before_any_is_made(options: dict[str, Any], plain: LLM) -> None:
    adapting = SPECULATE | {"adaptive_speculation": True, "max_burst_ms": 1000.0}
    with LLM(**options, **adapting) as llm:
        for style in (ask, partial(ask, temperature=0.7, seed=3)):
            assert_same(style(llm), style(plain), llm.info.plan)
        assert metric(llm, "octavo:spec_decode_num_trials") > 0


@pytest.fixture(scope="module")
def counting(succ: Path) -> Iterator[LLM]:
    with LLM(str(succ), num_gpu_blocks_override=200, **SPECULATE) as llm:
        yield llm


def count_in_words(llm: LLM, batch: int) -> list[Any]:
    prompts = ["1 2 1 2 1", "one two three one two three one", "a b c a b c a", "The cat sat. The cat sat. The"]
    params = SamplingParams(temperature=0.0, max_tokens=10, logprobs=1)
    return said(llm.generate(prompts[:batch], params, use_tqdm=False))


SMOLLM2: dict[str, dict[str, Any]] = {"float32": {"quantization": "none", "dtype": "float32"}, "its file's blocks": {}}


@pytest.fixture(scope="module")
def said_by_smollm2(smollm2: str) -> dict[str, list[list[Any]]]:
    """In each type of weights, to one prompt and to four."""
    found = {}
    for name, given in SMOLLM2.items():
        with LLM(smollm2, max_model_len=256, **given) as llm:
            found[name] = [count_in_words(llm, batch) for batch in (1, 4)]
    return found


def test_so10_a_grammar_holds_for_drafts_too(succ: Path) -> None:
    shapes = [
        StructuredOutputParams(regex="(abcdefgh ){3}[xy]{2}"),
        StructuredOutputParams(json={"type": "array", "items": {"enum": ["one two", "three"]}, "maxItems": 4}),
        StructuredOutputParams(json={"type": "array", "items": {"type": "string"}, "minItems": 9}),
        None,
    ]
    params = [
        SamplingParams(temperature=1.5, seed=2, max_tokens=60, structured_outputs=shape, ignore_eos=True)
        for shape in shapes
    ]
    prompts = [
        "abcdefgh abcdefgh ",
        '["one two","three"] ["one two","three"] ',
        '["ab","abababab","aaaa"]',
        "ABCABCABC",
    ]
    with LLM(str(succ), num_gpu_blocks_override=50) as llm:
        expected = said(llm.generate(prompts, params, use_tqdm=False))
        assert expected[2][2] == "stop", "its last tokens close it"
    with LLM(str(succ), num_gpu_blocks_override=50, **SPECULATE) as llm:
        assert said(llm.generate(prompts, params, use_tqdm=False)) == expected
        assert metric(llm, "vllm:spec_decode_num_accepted_tokens") > 0


@pytest.mark.parametrize(
    ("params", "text"),
    [
        ({"stop": "GH"}, "CDEF"),
        ({"stop": "GH", "include_stop_str_in_output": True}, "CDEFGH"),
        ({"stop_token_ids": [72]}, "CDEFG"),
        ({"max_tokens": 7}, "CDEFGHI"),
        ({}, "CDEFGHIJKLMNOPQRSTUVWXYZ"),
    ],
)
def test_answers_end_amid_drafts(counting: LLM, params: dict[str, Any], text: str) -> None:
    prompt = "ABCDEFGHIJKLMNOPQRSTUVWXYZAB"
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 40, **params})
    (output,) = counting.generate([prompt], sampling, use_tqdm=False)
    assert output.outputs[0].text == text
    assert output.metrics is not None and output.metrics.num_accepted_tokens > 0


@pytest.mark.parametrize(("weights", "k"), [*(("float32", k) for k in range(1, 9)), ("its file's blocks", 4)])
def test_sd01_a_real_model_says_the_same_for_any_number_of_drafts(
    smollm2: str, weights: str, k: int, said_by_smollm2: dict[str, list[list[Any]]]
) -> None:
    num_right = 0.0
    with LLM(smollm2, max_model_len=256, **SPECULATE, num_speculative_tokens=k, **SMOLLM2[weights]) as llm:
        assert llm.info.plan.quantization == ("none" if weights == "float32" else "gguf")
        for batch, expected in zip((1, 4), said_by_smollm2[weights], strict=True):
            assert count_in_words(llm, batch) == expected
            assert (now := metric(llm, "vllm:spec_decode_num_accepted_tokens")) > num_right
            num_right = now


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"prompt_lookup_min": 5, "prompt_lookup_max": 3}, "prompt_lookup_min=5 is above prompt_lookup_max=3"),
        ({"load_format": "mock"}, "with a simulated model"),
    ],
)
def test_what_cannot_be_had_is_refused(succ: Path, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        LLM(str(succ), **{**SPECULATE, **options})
