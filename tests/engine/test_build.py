from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.config.flat import config_from_kwargs, options
from octavo.engine.build import EXECUTORS, STARTERS, WORKER_BUILDER, build_engine_core
from octavo.util.lazy import resolve
from octavo.words.errors import ConfigError, InsufficientMemoryError, ModelNotFoundError
from tests.fakes import make_message
from tests.succ import make_succ

TABLE = [*EXECUTORS.values(), WORKER_BUILDER]
TORCH_FREE = [
    "octavo.engine.client",
    "octavo.engine.core",
    "octavo.engine.core_loop",
    "octavo.engine.core_proc",
    "octavo.frontend.llm_engine",
]


def build(**asked: Any) -> Any:
    asked = {"model": "simulated", "distributed_executor_backend": "simulated", "plugins": ""} | asked
    return build_engine_core(config_from_kwargs(**asked))


@pytest.mark.parametrize("name", TABLE)
def test_every_entry_of_a_table_resolves(name: str) -> None:
    assert callable(resolve(name))


def test_every_executor_that_can_be_asked_can_be_started() -> None:
    [backend] = [leaf for leaf in options() if leaf.name == "distributed_executor_backend"]
    assert set(backend.option.choices) == set(EXECUTORS) == set(STARTERS)


def test_a_simulated_engine_starts_and_says_every_phase(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "octavo"):
        core, info = build(max_model_len=1000, kv_cache_memory_bytes=1 << 20, block_size=16, dtype="float32")
    assert list(info.phases) == [
        "read headers",
        "plan",
        "plugins",
        "init worker",
        "profile",
        "plan kv cache",
        "create kv cache",
        "warm up",
        "scheduler",
    ]
    lines = caplog.messages
    # 2 layers x 2 (keys and values) x 2 heads x 32 entries x 4 bytes = 1 KiB a token: 64 blocks, one of them null.
    assert "CPU KV cache size: 1,000 tokens, Maximum concurrency for 1,000 tokens per request: 1.00x" in lines
    assert "Available KV cache memory: 0.00 GiB" in lines
    assert "Using max model len 1000" in lines
    assert any(line.startswith("Plan: max_model_len = 1000 (") for line in lines)
    assert any(line.startswith("non-default args: {'model': 'simulated'") for line in lines)
    assert set(info.plan.reasons) <= {line.split()[1] for line in lines if line.startswith("Plan: ")}

    core.add_request(make_message("a", 4, max_tokens=2, ignore_eos=True))
    tokens = []
    while core.has_work:
        for outputs in core.step().values():
            tokens += [token for output in outputs.outputs for token in output.new_token_ids]
    assert len(tokens) == 2
    core.shutdown()


def test_the_simulated_executor_serves_the_shape_of_a_real_model(tmp_path: Path) -> None:
    folder = make_succ(tmp_path)
    core, info = build(model=str(folder))
    assert info.facts == read_model_facts(resolve_model(str(folder)))
    assert info.max_model_len == 4096
    core.shutdown()


def test_a_forced_number_of_blocks_bounds_a_request() -> None:
    core, info = build(max_model_len=2048, block_size=16, num_gpu_blocks_override=41)
    assert info.max_tokens_that_fit == core.scheduler.max_request_len == 640
    core.shutdown()


@pytest.mark.parametrize(
    ("asked", "is_told"),
    [
        ({"block_size": 8}, True),
        ({"block_size": 16}, False),
        ({"block_size": 8, "kernels": "reference"}, False),  # as asked
        ({"block_size": 8, "distributed_executor_backend": "simulated"}, False),  # which attends to nothing
    ],
)
def test_a_block_size_that_makes_attention_slow_is_said(
    asked: dict[str, Any], is_told: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"model": str(make_succ(tmp_path)), "distributed_executor_backend": "uni", "max_model_len": 64, **asked}
    with caplog.at_level(logging.WARNING, "octavo"):
        core, _ = build(**config)
    core.shutdown()
    told = [line for line in caplog.messages if line.startswith("Attention is slow: ")]
    assert len(told) == is_told and all("multiples of 16, not 8" in line for line in told)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"max_model_len": 10_000}, ConfigError),
        ({"kv_cache_memory_bytes": 100_000}, InsufficientMemoryError),
        ({"plugins": "not-installed"}, ConfigError),
        ({"model": "simulatd"}, ModelNotFoundError),
    ],
)
def test_what_cannot_start_raises_its_own_error(asked: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        build(**asked)


def test_the_engine_without_a_worker_never_loads_torch() -> None:
    code = f"""
import sys
import {", ".join(TORCH_FREE)}
from octavo.engine.client import InprocClient
from octavo.config.flat import config_from_kwargs
InprocClient(config_from_kwargs(model="simulated", distributed_executor_backend="simulated"))
sys.exit("torch" in sys.modules or "transformers" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
