"""Every architecture in every type of weights and of cache: near to float32, and not the same as it."""

from __future__ import annotations

import random
import statistics
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RequestOutput, SamplingParams
from tests.succ import make_succ
from tests.tiny_models import ARCHITECTURES, save_tiny_model

PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, prompt_logprobs=0, detokenize=False)
# Rounding to eight bits moves a logprob by this much on average; the logprobs themselves spread by more than 1.
BFLOAT16_MOVES = 0.1
# (weights and activations, cache)
COMBINATIONS = (("bfloat16", "auto"), ("float32", "bfloat16"), ("bfloat16", "float32"), ("float32", "int8"))


def ask(folder: Path, **options: Any) -> tuple[list[RequestOutput], LLM]:
    rng = random.Random(0)
    prompts = [{"prompt_token_ids": [rng.randrange(3, 250) for _ in range(length)]} for length in (30, 70)]
    model, tokenizer = str(folder / "model"), str(folder / "succ")
    with LLM(model, tokenizer=tokenizer, num_threads=1, max_model_len=128, **options) as llm:
        return llm.generate(prompts, PARAMS, use_tqdm=False), llm


def prompt_logprobs(outputs: list[RequestOutput]) -> list[float]:
    return [each.logprob for output in outputs for row in (output.prompt_logprobs or [])[1:] for each in row.values()]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_bfloat16_is_near_to_float32(architecture: str, tmp_path: Path) -> None:
    make_succ(tmp_path / "succ")
    save_tiny_model(tmp_path / "model", architecture)
    exact = prompt_logprobs(ask(tmp_path, dtype="float32")[0])
    assert statistics.pstdev(exact) > 1.0
    for dtype, kv_cache_dtype in COMBINATIONS:
        outputs, llm = ask(tmp_path, dtype=dtype, kv_cache_dtype=kv_cache_dtype)
        wanted_kv = dtype if kv_cache_dtype == "auto" else kv_cache_dtype
        assert {group.spec.dtype for group in llm.info.kv_cache_config.groups} == {wanted_kv}
        rounded = prompt_logprobs(outputs)
        moved = statistics.mean(abs(one - other) for one, other in zip(rounded, exact, strict=True))
        assert 0.0 < moved < BFLOAT16_MOVES
        assert all(len(output.outputs[0].token_ids) == 4 for output in outputs)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_dummy_weights_serve_every_architecture_without_a_weight_file(architecture: str, tmp_path: Path) -> None:
    make_succ(tmp_path / "succ")
    (save_tiny_model(tmp_path / "model", architecture) / "model.safetensors").unlink()
    answers = []
    for seed in (0, 0, 1):
        outputs, _ = ask(tmp_path, dtype="float32", load_format="dummy", seed=seed)
        answers.append(prompt_logprobs(outputs))
    assert answers[0] == answers[1] != answers[2]
