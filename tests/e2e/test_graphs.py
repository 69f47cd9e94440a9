"""Captured steps answer as steps run op by op, to the bit; and what cannot be captured is still served."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, RequestOutput, SamplingParams
from octavo.device.models.table import MODELS
from tests.succ import make_succ
from tests.tiny_models import ARCHITECTURES, save_tiny_model

pytest.importorskip("octavo._native", reason="built without the native module")

PARAMS = SamplingParams(temperature=0.0, ignore_eos=True, logprobs=3, detokenize=False)
PROMPTS = [list(range(3 + length, 3 + 2 * length)) for length in (1, 28, 30, 17)]
# Prompts in chunks beside decodes.
CROWDED = {"max_num_batched_tokens": 24, "max_num_seqs": 4, "block_size": 16}
ODD = "tests.device.models.odd_llamas:"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("tiny")
    make_succ(folder / "succ")
    return {
        name: {
            "model": str(save_tiny_model(folder / name, name)),
            "tokenizer": str(folder / "succ"),
            "max_model_len": 256,
        }
        for name in ARCHITECTURES
    }


def ask(llm: LLM, max_tokens: int = 10) -> list[RequestOutput]:
    params = PARAMS.clone(max_tokens=max_tokens)
    return llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)


def answers(outputs: list[RequestOutput]) -> list[Any]:
    """Token ids and logprobs, which must be equal to the bit."""
    return [
        (one.token_ids, [{token: each.logprob for token, each in row.items()} for row in one.logprobs or []])
        for output in outputs
        for one in output.outputs
    ]


def counters(llm: LLM) -> dict[str, int]:
    (found,) = llm.collective_rpc("graph_counters")
    return found


def assert_replays_answer_as_eager_steps(options: dict[str, Any], max_tokens: int = 10) -> float:
    """And return how many requests were preempted."""
    with LLM(**options) as llm:
        replayed = answers(ask(llm, max_tokens))
        assert llm.info.graph is not None and llm.info.graph.captured
        assert llm.info.graph.splits == []
        metrics = {each.name: each.value for each in llm.get_metrics()}
        assert counters(llm)["replays"] >= metrics["octavo:num_steps"] > len(PROMPTS)
        assert counters(llm)["eager_steps"] == 0
    with LLM(**options, enforce_eager=True) as llm:
        assert answers(ask(llm, max_tokens)) == replayed
        assert counters(llm)["replays"] == 0
    return metrics["vllm:num_preemptions"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_family_is_captured_whole_and_answers_the_same(
    tiny: dict[str, dict[str, Any]], architecture: str, dtype: str
) -> None:
    num_groups = 7 if architecture == "gemma3" else 1
    few_blocks = {"num_gpu_blocks_override": 1 + 5 * num_groups}
    num_preemptions = assert_replays_answer_as_eager_steps(tiny[architecture] | CROWDED | few_blocks | {"dtype": dtype})
    assert num_preemptions > 0


def test_smollm2_is_captured_whole_and_answers_the_same(smollm2: str) -> None:
    options = {"model": smollm2, "max_model_len": 256, "dtype": "float32"}
    assert_replays_answer_as_eager_steps(options | CROWDED, max_tokens=3)


def odd(name: str, tiny: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setitem(MODELS, "llama", ODD + name)
    return tiny["llama"]


def test_a_model_with_an_op_of_its_own_is_captured_with_one_split(
    tiny: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = odd("UnknownOpLlama", tiny, monkeypatch)
    with LLM(**options) as llm:
        replayed = answers(ask(llm))
        assert llm.info.graph is not None and llm.info.graph.splits == ["softened ()"]
        assert counters(llm)["replays"] > 0
    with LLM(**options, enforce_eager=True) as llm:
        assert answers(ask(llm)) == replayed


@pytest.mark.parametrize(
    ("name", "reason"),
    [("TorchLlama", "aten.mul.Tensor is called at .*odd_llamas.py"), ("WrongKernelLlama", "differs from the same")],
)
def test_a_model_that_cannot_be_captured_is_served_op_by_op_with_a_warning(
    tiny: dict[str, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    reason: str,
) -> None:
    options = odd(name, tiny, monkeypatch)
    with caplog.at_level(logging.WARNING), LLM(**options) as llm:
        tried = answers(ask(llm))
        assert llm.info.graph is not None and not llm.info.graph.captured
        assert counters(llm)["replays"] == 0
    assert [record for record in caplog.records if "op by op" in record.message]
    assert re.search(reason, llm.info.graph.reason)
    with LLM(**options, enforce_eager=True) as llm:
        assert answers(ask(llm)) == tried


def test_attention_without_a_native_kernel_splits_the_step_twice_at_each_layer(tmp_path: Path) -> None:
    make_succ(tmp_path / "succ")
    save_tiny_model(tmp_path / "model", "llama", head_dim=12)
    options = {"model": str(tmp_path / "model"), "tokenizer": str(tmp_path / "succ"), "max_model_len": 256}
    with LLM(**options) as llm:
        replayed = answers(ask(llm))
        assert llm.info.plan.attention_backend == "reference"
        assert llm.info.graph is not None and len(llm.info.graph.splits) == 2 * llm.info.facts.num_layers
        ops = ["qkv_rope_write (layers.0.attention)", "paged_attention (layers.0.attention.attention)"]
        assert llm.info.graph.splits[:2] == ops
    with LLM(**options, enforce_eager=True) as llm:
        assert answers(ask(llm)) == replayed
        assert llm.info.graph is not None and llm.info.graph.reason == "enforce_eager, as asked"
