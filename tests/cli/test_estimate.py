from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
import torch

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.cli.estimate import estimate
from octavo.cli.main import main
from octavo.config.flat import config_from_kwargs
from octavo.device.loader.load import load_weights
from octavo.device.platform.detect import detect_caps
from octavo.device.worker.build import build_empty_model, build_kernels
from octavo.device.worker.memory import parameter_bytes
from octavo.frontend.llm import LLM
from octavo.plan.kv_specs import kv_cache_specs
from octavo.plan.plan import Plan
from octavo.plan.planner import make_plan
from octavo.words.model_facts import ModelFacts
from tests.drafters import save_noisy_copy
from tests.tiny_models import ARCHITECTURES, save_tiny_model


def facts_and_plan(model: str, **options: object) -> tuple[ModelFacts, Plan]:
    config = config_from_kwargs(model=model, **options)
    facts = read_model_facts(resolve_model(model))
    return facts, make_plan(config, facts, detect_caps("cpu"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_specs_from_facts_are_those_of_the_models_own_layers(architecture: str, tmp_path: Path) -> None:
    facts, plan = facts_and_plan(str(save_tiny_model(tmp_path, architecture)), block_size=32)
    with torch.device("meta"):
        model = build_empty_model(plan, facts, build_kernels(plan))
    assert kv_cache_specs(facts, plan) == model.kv_cache_specs()


def test_smollm2_has_the_known_figures(smollm2: str) -> None:
    options = {"dtype": "bfloat16", "kv_cache_memory_bytes": 2 * 23_040 * 8_192 + 2_000_000}
    figures = estimate(*facts_and_plan(smollm2, quantization="none", **options))
    assert figures["kv_bytes_per_token"] == 23_040
    assert figures["longest_length"] == 8_192
    assert figures["concurrency"] == pytest.approx(2.0, abs=0.05)
    assert figures["num_parameters"] == 134_515_008
    assert figures["weight_bytes"] == 2 * 134_515_008
    assert figures["dtype"] == "bfloat16"


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_weights_take_what_was_estimated(smollm2: str, quantization: str | None) -> None:
    pytest.importorskip("octavo._native", reason="built without the native module")
    facts, plan = facts_and_plan(smollm2, quantization=quantization, max_model_len=64)
    model = build_empty_model(plan, facts, build_kernels(plan))
    load_weights(model, resolve_model(smollm2))
    assert parameter_bytes(model) == pytest.approx(plan.weight_bytes, rel=0.01)
    if quantization is None:
        assert plan.quantization == "gguf"
        assert plan.weight_bytes <= 1.05 * facts.weight_bytes


def test_an_estimate_is_what_the_engine_then_does(succ: Path) -> None:
    options = {"max_model_len": 300, "kv_cache_memory_bytes": 1 << 20, "block_size": 16}
    figures = estimate(*facts_and_plan(str(succ), **options))
    with LLM(str(succ), **options) as llm:
        assert figures["longest_length"] == llm.info.max_model_len
        assert figures["concurrency"] == llm.info.max_concurrency
        assert figures["kv_cache_bytes"] == sum(tensor.size_bytes for tensor in llm.info.kv_cache_config.tensors)


def test_adapters_and_a_drafter_are_part_of_it_and_the_engine_then_does_the_same(
    succ: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_tiny_model(tmp_path / "model", "llama")
    (tmp_path / "drafter").mkdir()
    drafter = save_noisy_copy(model, tmp_path / "drafter")
    options = {"max_model_len": 64, "kv_cache_memory_bytes": 1 << 20, "block_size": 16, "dtype": "float32"}
    options |= {"speculative_method": "draft_model", "speculative_model": str(drafter)}
    options |= {"enable_lora": True, "max_loras": 2, "max_lora_rank": 4}
    flags = [f"--{name}={value}" for name, value in options.items() if value is not True] + ["--enable-lora"]
    assert main(["estimate", str(model), *flags, "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert main(["estimate", str(model), *flags]) == 0
    text = capsys.readouterr().out
    assert "LoRA adapters     0.00 GiB at most" in text and "the drafter's     0.00 GiB of them" in text
    with LLM(str(model), tokenizer=str(succ), **options) as llm:
        plan, config = llm.info.plan, llm.info.kv_cache_config
    assert config.drafter is not None
    num_bytes = sum(tensor.size_bytes for tensor in (*config.tensors, *config.drafter.tensors))
    assert figures["kv_cache_bytes"] == num_bytes
    assert figures["kv_bytes_per_token"] == num_bytes / config.num_blocks / 16
    assert figures["longest_length"] == config.max_model_len
    assert figures["adapter_bytes"] == plan.adapter_bytes > 0
    assert figures["drafter_bytes"] == plan.drafter_bytes == figures["weight_bytes"] // 2


def test_the_command_prints_text_or_json(succ: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(succ), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["architecture"] == "llama"
    assert main(["estimate", str(succ)]) == 0
    assert "longest length" in capsys.readouterr().out


def test_what_does_not_fit_is_one_clear_line(succ: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(succ), "--kv-cache-memory-bytes", "100"]) == 1
    assert "available" in capsys.readouterr().err


def test_flags_are_those_of_the_options() -> None:
    from octavo.cli import estimate as command

    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    assert parser.parse_args(["m", "--max-model-len", "auto"]).max_model_len == "auto"
