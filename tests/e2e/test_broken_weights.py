"""Weights with NaN in them: requests fail with the reason, the engine lives on, and nothing bad stays in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo import LLM, RequestOutput, SamplingParams
from tests.succ import make_succ

SMALL: dict[str, Any] = {"num_threads": 1, "max_model_len": 64, "block_size": 4}
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, logprobs=1)


def with_nan(folder: Path, tensor: str, row: int) -> Path:
    """The counting model with NaN in one row of one of its tensors."""
    file = make_succ(folder) / "model.safetensors"
    weights = load_file(file)
    weights[tensor][row] = np.nan
    save_file(weights, file, metadata={"format": "pt"})
    return folder


def ask(llm: LLM, prompts: list[str], params: SamplingParams = PARAMS) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def metric(llm: LLM, name: str) -> float:
    return sum(each.value for each in llm.get_metrics() if each.name == name)


@pytest.mark.parametrize(
    ("tensor", "row"),
    [
        ("lm_head.weight", 300),  # a row that is never sampled: a padding row
        ("model.norm.weight", 3),
        ("model.layers.0.self_attn.v_proj.weight", 5),
        ("model.layers.1.mlp.up_proj.weight", 0),
    ],
)
def test_every_request_fails_with_its_reason_and_the_engine_lives(tmp_path: Path, tensor: str, row: int) -> None:
    with LLM(str(with_nan(tmp_path / "nan", tensor, row)), **SMALL) as llm:
        for _ in range(2):
            outputs = ask(llm, ["A", "K" * 20, "L" * 20])
            choices = [output.outputs[0] for output in outputs]
            assert {choice.finish_reason for choice in choices} == {"error"}
            assert all("NaN" in (choice.error or "") for choice in choices)
            assert [choice.token_ids for choice in choices] == [[], [], []]
        assert metric(llm, "vllm:prefix_cache_hits") == 0
        assert metric(llm, "vllm:kv_cache_usage_perc") == 0
        assert metric(llm, "vllm:num_requests_running") == 0
        assert llm.reset_prefix_cache() is True


def test_a_poisoned_token_fails_who_uses_it_and_nobody_who_gets_its_blocks(succ: Path, tmp_path: Path) -> None:
    """Batch-mates, and those who are given the blocks with NaN in them, answer as with healthy weights."""
    poisoned = with_nan(tmp_path / "nan", "model.embed_tokens.weight", ord("X"))
    healthy_prompts = [letter * length for letter in "ABC" for length in (1, 5, 11)]
    prompts = [prompt for healthy in healthy_prompts for prompt in (healthy, healthy + "X", "X" * 9)]
    options = SMALL | {"num_gpu_blocks_override": 17, "max_num_seqs": 4, "max_num_batched_tokens": 16}
    with LLM(str(succ), **options) as healthy_llm:
        expected = ask(healthy_llm, healthy_prompts)
    with LLM(str(poisoned), **options) as llm:
        for _ in range(2):
            outputs = ask(llm, prompts)
            for place, output in enumerate(outputs):
                is_poisoned = "X" in prompts[place]
                assert output.outputs[0].finish_reason == ("error" if is_poisoned else "length"), prompts[place]
            assert [output.outputs for output in outputs[::3]] == [output.outputs for output in expected]
        num_blocks_used = sum(-(-len(prompt) // SMALL["block_size"]) for prompt in prompts)
        assert num_blocks_used > 2 * 16  # more than there are: blocks were given on


def test_logprobs_of_a_prompt_with_nan_fail_that_request_alone(tmp_path: Path) -> None:
    poisoned = with_nan(tmp_path / "nan", "model.embed_tokens.weight", ord("X"))
    params = PARAMS.clone(prompt_logprobs=1)
    with LLM(str(poisoned), **SMALL, max_num_batched_tokens=4, max_num_seqs=2) as llm:
        bad, good = ask(llm, ["AAX" + "A" * 9, "A" * 12], params)
        assert bad.outputs[0].finish_reason == "error"
        assert "prompt" in (bad.outputs[0].error or "")
        assert good.outputs[0].text == "BCDE"
        assert good.prompt_logprobs is not None and len(good.prompt_logprobs) == 12


def test_a_token_that_breaks_its_request_in_the_middle_of_a_burst_harms_nobody(tmp_path: Path) -> None:
    poisoned = str(with_nan(tmp_path / "nan", "model.embed_tokens.weight", ord("X")))
    params = SamplingParams(temperature=0.0, max_tokens=16)
    found = []
    for max_burst_ms in (0.0, 1000.0):
        with LLM(poisoned, max_burst_ms=max_burst_ms, **SMALL) as llm:
            ask(llm, ["A"], params)
            before = metric(llm, "octavo:num_bursts")
            outputs = ask(llm, ["A", "P", "a"], params)
            found.append([(choice.token_ids, choice.text, choice.error) for choice in (o.outputs[0] for o in outputs)])
            assert (metric(llm, "octavo:num_bursts") > before) == bool(max_burst_ms)
            assert metric(llm, "vllm:kv_cache_usage_perc") == 0
    single, burst = found
    assert burst == single
    assert [text for _, text, _ in burst] == ["BCDEFGHIJKLMNOPQ", "QRSTUVWX", "bcdefghijklmnopq"]
    assert "NaN" in (burst[1][2] or "")
