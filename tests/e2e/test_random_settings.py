"""Everything at once: prompts that share prefixes, asked with all kinds of parameters, of engines set up at random.

The answers are those of a plain engine that is asked one prompt at a time; counters prove that the way there was not
plain. Settings follow from a seed, so a failure repeats.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from octavo import LLM, RequestOutput, SamplingParams
from octavo.control.kv.capacity import max_blocks_per_request
from octavo.words.kv_cache_spec import KVCacheSpec
from octavo.words.outputs import Logprob
from tests.succ import make_succ
from tests.tiny_models import save_tiny_model

MAX_MODEL_LEN = 160
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=1.0, seed=1, n=3, max_tokens=20, logprobs=0, stop=list("aeiouAEIOU13579+-")),
    SamplingParams(temperature=0.7, seed=2, max_tokens=25, top_k=20, min_tokens=9, stop_token_ids=list(range(60, 160))),
    SamplingParams(temperature=0.0, max_tokens=17, repetition_penalty=1.3, presence_penalty=0.5, bad_words=["ab", "c"]),
    SamplingParams(temperature=1.0, seed=3, n=2, top_p=0.8, max_tokens=12, prompt_logprobs=0, detokenize=False),
    SamplingParams(temperature=1.0, seed=4, max_tokens=1, logprobs=3, min_p=0.05),
    SamplingParams(temperature=0.0, max_tokens=28, ignore_eos=True, frequency_penalty=1.0, logit_bias={70: 5.0}),
]


class Subject(NamedTuple):
    """A tiny model, and what a plain engine answers."""

    options: dict[str, Any]
    specs: list[KVCacheSpec]
    prompts: list[dict[str, list[int]]]
    expected: list[RequestOutput]


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    folder = tmp_path_factory.mktemp("random")
    make_succ(folder / "succ")
    save_tiny_model(folder / "model", request.param)
    options = {"model": str(folder / "model"), "tokenizer": str(folder / "succ"), "dtype": "float32"}
    options |= {"num_threads": 1, "max_model_len": MAX_MODEL_LEN}
    rng = random.Random(5)
    base = [rng.randrange(3, 250) for _ in range(80)]
    prompts = [
        {"prompt_token_ids": base[:shared] + [rng.randrange(3, 250) for _ in range(rng.randrange(1, 40))]}
        for shared in (0, 16, 32, 48, 48, 64, 80)
    ]
    with LLM(**options, enable_prefix_caching=False) as llm:
        expected = [
            llm.generate(prompt, params, use_tqdm=False)[0] for prompt, params in zip(prompts, PARAMS, strict=True)
        ]
        yield Subject(options, [group.spec for group in llm.info.kv_cache_config.groups], prompts, expected)


def random_setting(rng: random.Random, specs: list[KVCacheSpec]) -> dict[str, Any]:
    """Small steps, and a cache that holds the longest request and next to nothing more."""
    block_size = rng.choice([4, 8, 16])
    chunked = rng.random() < 0.7
    tokens = rng.choice([16, 40, 64]) if chunked else MAX_MODEL_LEN
    resized = [msgspec.structs.replace(spec, block_size=block_size) for spec in specs]
    return {
        "block_size": block_size,
        "num_gpu_blocks_override": 1 + max_blocks_per_request(resized, MAX_MODEL_LEN, tokens) + rng.randrange(3),
        "max_num_batched_tokens": tokens,
        "max_num_seqs": rng.choice([5, 10]),
        "enable_chunked_prefill": chunked,
        "scheduling_policy": rng.choice(["fcfs", "priority"]),
        "watermark": rng.choice([0.0, 0.1]),
        "long_prefill_token_threshold": rng.choice([0, 5]) if chunked else 0,
    }


def test_answers_are_those_of_a_plain_engine(subject: Subject) -> None:
    num_preemptions = 0.0
    for seed in range(3):
        rng = random.Random(seed)
        setting = random_setting(rng, subject.specs)
        priorities = [rng.randrange(3) for _ in subject.prompts]
        with LLM(**subject.options, **setting) as llm:
            ranked = {"priority": priorities} if setting["scheduling_policy"] == "priority" else {}
            outputs = llm.generate(subject.prompts, PARAMS, use_tqdm=False, **ranked)
            counters = {each.name.removeprefix("vllm:"): each.value for each in llm.get_metrics()}
            assert llm.reset_prefix_cache() is True
        for output, expected in zip(outputs, subject.expected, strict=True):
            assert_same(output, expected)
        assert counters["prefix_cache_hits"] > 0
        assert counters["kv_cache_usage_perc"] == 0.0
        num_preemptions += counters["num_preemptions"]
    assert num_preemptions > 0


def assert_same(output: RequestOutput, expected: RequestOutput) -> None:
    assert_close(output.prompt_logprobs, expected.prompt_logprobs)
    for choice, plain in zip(output.outputs, expected.outputs, strict=True):
        for field in ("index", "text", "token_ids", "finish_reason", "stop_reason", "error"):
            assert getattr(choice, field) == getattr(plain, field), field
        assert choice.logprobs is None or len(choice.logprobs) == len(choice.token_ids)
        assert_close(choice.logprobs, plain.logprobs)


def assert_close(found: list[dict[int, Logprob] | None] | Any, expected: list[dict[int, Logprob] | None] | Any) -> None:
    assert (found is None) == (expected is None)
    for ours, plain in zip(found or (), expected or (), strict=True):
        assert {token_id: each.logprob for token_id, each in (ours or {}).items()} == pytest.approx(
            {token_id: each.logprob for token_id, each in (plain or {}).items()}, abs=1e-4
        )


def test_the_parameters_reach_what_they_are_there_for(subject: Subject) -> None:
    reasons = {choice.stop_reason for output in subject.expected for choice in output.outputs}
    assert any(isinstance(reason, str) for reason in reasons)
    assert any(isinstance(reason, int) for reason in reasons)
    assert {choice.finish_reason for output in subject.expected for choice in output.outputs} == {"stop", "length"}
