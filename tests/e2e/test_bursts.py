"""Answers of bursts are those of single steps, to the bit, whatever is asked; counters prove that bursts ran."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RequestOutput, SamplingParams
from tests.tiny_models import save_tiny_model

NUM_PROMPTS = 9
OFF = {"max_burst_ms": 0.0}
ON = {"max_burst_ms": 1000.0}


@pytest.fixture(scope="module")
def options_of(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    folder = tmp_path_factory.mktemp("bursts")

    def of(architecture: str) -> dict[str, Any]:
        model = folder / architecture
        if not model.exists():
            save_tiny_model(model, architecture)
        small = {"max_model_len": 128, "block_size": 16, "num_threads": 1, "num_gpu_blocks_override": 200}
        return {"model": str(model), "tokenizer": str(succ), **small}

    return of


def random_params(rng: random.Random) -> SamplingParams:
    """What a sampler can be asked for, some of it, in any mixture."""
    chances: dict[str, Callable[[], Any]] = {
        "top_k": lambda: rng.choice([1, 5, 40]),
        "top_p": lambda: rng.uniform(0.3, 0.99),
        "min_p": lambda: rng.uniform(0.01, 0.3),
        "logprobs": lambda: rng.randrange(4),
        "presence_penalty": lambda: rng.uniform(-1, 1),
        "repetition_penalty": lambda: rng.uniform(0.8, 1.5),
        "min_tokens": lambda: rng.randrange(12),
        "stop_token_ids": lambda: rng.sample(range(40, 200), 30),
        "logit_bias": lambda: {rng.randrange(3, 200): rng.uniform(-5, 5)},
        "bad_words": lambda: ["a", "bc"],
        "allowed_token_ids": lambda: list(range(3, 200)),
        "stop": lambda: ["e", "12"],
        "ignore_eos": lambda: True,
    }
    chosen = {name: make() for name, make in chances.items() if rng.random() < 0.25}
    temperature = rng.choice([0.0, 0.5, 1.0])
    n = 2 if temperature and rng.random() < 0.2 else 1
    return SamplingParams(
        temperature=temperature, seed=rng.randrange(99), n=n, max_tokens=rng.randrange(12, 50), **chosen
    )


def ask(llm: LLM, params: list[SamplingParams]) -> list[RequestOutput]:
    rng = random.Random(1)
    prompts = [{"prompt_token_ids": [rng.randrange(3, 250) for _ in range(rng.randrange(2, 40))]} for _ in params]
    return llm.generate(prompts, params, use_tqdm=False)


def said(outputs: list[RequestOutput]) -> list[Any]:
    """All of an answer; logprobs must be equal to the bit."""
    return [
        (one.token_ids, one.text, one.finish_reason, one.stop_reason, [_row(row) for row in one.logprobs or ()])
        for output in outputs
        for one in output.outputs
    ]


def _row(row: dict[int, Any]) -> list[tuple[int, float, int]]:
    return [(token_id, each.logprob, each.rank) for token_id, each in row.items()]


def counted(llm: LLM) -> dict[str, float]:
    return {each.name.removeprefix("octavo:"): each.value for each in llm.get_metrics()}


PLAIN = [
    SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=4, max_tokens=33, ignore_eos=True),
    SamplingParams(temperature=0.7, seed=5, top_k=30, top_p=0.9, min_p=0.01, max_tokens=26, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=6, n=3, max_tokens=28, stop_token_ids=list(range(3, 20))),
]
MIXED = [random_params(random.Random(seed)) for seed in range(NUM_PROMPTS)]


@pytest.mark.parametrize(
    ("architecture", "more"),
    [
        ("llama", {}),
        ("llama", {"kernels": "reference"}),
        ("llama", {"enforce_eager": True, "kv_cache_dtype": "int8"}),
        ("llama", {"quantization": "int8", "enable_prefix_caching": False}),
        ("gemma3", {"dtype": "bfloat16"}),
    ],
    ids=str,
)
def test_answers_are_those_of_single_steps(
    options_of: Callable[[str], dict[str, Any]], architecture: str, more: dict[str, Any]
) -> None:
    options = {**options_of(architecture), **more}
    with LLM(**options, **OFF) as llm:
        expected = [said(ask(llm, params)) for params in (PLAIN, MIXED)]
        assert counted(llm)["num_bursts"] == 0
    with LLM(**options, **ON) as llm:
        assert [said(ask(llm, params)) for params in (PLAIN, MIXED)] == expected
        numbers = counted(llm)
        assert numbers["num_burst_steps"] > 2 * numbers["num_bursts"] > 0
        (graphs,) = llm.collective_rpc("graph_counters")
        assert graphs["replays"] + graphs["eager_steps"] >= numbers["num_steps"]
        assert (graphs["loop_steps"] > 0) == (graphs["replays"] > 0)


def test_a_burst_is_over_when_all_of_its_requests_have_ended(options_of: Callable[[str], dict[str, Any]]) -> None:
    options = options_of("llama")
    with LLM(**options, **OFF) as llm:
        answer = ask(llm, [PLAIN[0]])[0].outputs[0].token_ids
    end = next(number for number in range(2, len(answer)) if answer[number] not in answer[:number])
    ends = PLAIN[0].clone(stop_token_ids=[answer[end]])
    with LLM(**options, **ON) as llm:
        ask(llm, [PLAIN[0]])
        before = counted(llm)["num_steps"]
        (output,) = ask(llm, [ends])
        assert output.outputs[0].token_ids == answer[: end + 1]
        assert output.outputs[0].stop_reason == answer[end]
        # One more: the engine's own that tells the worker of the end.
        assert counted(llm)["num_steps"] - before <= end + 2
