from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.config.cache import CacheConfig
from octavo.config.engine_config import EngineConfig
from octavo.config.model import ModelConfig
from octavo.config.parallel import ParallelConfig
from octavo.config.scheduler import SchedulerConfig
from octavo.engine.build import build_engine_core
from octavo.engine.core import EngineCore
from octavo.executor.uniproc import UniProcExecutor
from octavo.words.errors import UnsupportedError
from octavo.words.messages import EngineCoreOutput, EngineCoreRequest, LogprobsRow, ResolvedSampling
from octavo.words.sampling_params import SamplingParams
from tests.succ import EOS, EOT, NUM_TEXT_TOKENS, WINNING_LOGIT, successor


def make_core(succ: Path, *, block_size: int = 16, tokens_per_step: int = 64, **model: Any) -> EngineCore:
    config = EngineConfig(
        model=ModelConfig(model=str(succ), dtype="float32", max_model_len=4096, **model),
        cache=CacheConfig(block_size=block_size, kv_cache_memory_bytes=64 << 20),
        scheduler=SchedulerConfig(max_num_batched_tokens=tokens_per_step, max_num_seqs=min(32, tokens_per_step)),
        parallel=ParallelConfig(num_threads=1),
    )
    return build_engine_core(config)[0]


@pytest.fixture(scope="module")
def core(succ: Path) -> Iterator[EngineCore]:
    core = make_core(succ)
    yield core
    core.shutdown()


def request(request_id: str, prompt: str, *, seed: int = 0, bad_words: Any = (), **params: Any) -> EngineCoreRequest:
    sampling = SamplingParams(**{"temperature": 0.0, "max_tokens": 40, **params})
    return EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=[ord(character) for character in prompt],
        sampling=ResolvedSampling(
            params=sampling,
            seed=seed,
            max_tokens=sampling.max_tokens or 40,
            num_text_tokens=NUM_TEXT_TOKENS,
            eos_token_ids=() if sampling.ignore_eos else (EOS, EOT),
            bad_words_token_ids=bad_words,
        ),
        arrival_time=0.0,
    )


def run(core: EngineCore, *requests: EngineCoreRequest) -> dict[str, list[EngineCoreOutput]]:
    """All outputs by request id."""
    found: dict[str, list[EngineCoreOutput]] = {one.request_id: [] for one in requests}
    for one in requests:
        core.add_request(one)
    while core.has_work:
        for outputs in core.step().values():
            for output in outputs.outputs:
                found[output.request_id].append(output)
    return found


def tokens(core: EngineCore, prompt: str, **params: Any) -> list[int]:
    (outputs,) = run(core, request("r", prompt, **params)).values()
    return [token for output in outputs for token in output.new_token_ids]


def text(core: EngineCore, prompt: str, **params: Any) -> str:
    return "".join(chr(token) for token in tokens(core, prompt, **params) if token < 256)


def test_greedy_counts_to_the_end(core: EngineCore) -> None:
    ids = tokens(core, "A")
    assert "".join(map(chr, ids[:-1])) == "BCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert ids[-1] == EOT
    assert len(ids) == 26
    assert len(tokens(core, "w")) == 4


def test_min_tokens_masks_both_ends(core: EngineCore) -> None:
    assert text(core, "w", min_tokens=6, max_tokens=6) == "xyzABC"
    assert text(core, "W", min_tokens=6, max_tokens=6) == "XYZabc"


def test_ignore_eos_goes_through_the_end(core: EngineCore) -> None:
    ids = tokens(core, "w", ignore_eos=True, max_tokens=10)
    assert ids == [*map(ord, "xyz"), EOS, *map(ord, "ABCDEF")]


def test_padding_rows_are_not_sampled_at_temperature_two(core: EngineCore) -> None:
    requests = [request(str(i), "A", seed=i, temperature=2.0, ignore_eos=True, max_tokens=100) for i in range(20)]
    ids = [t for outputs in run(core, *requests).values() for output in outputs for t in output.new_token_ids]
    assert len(ids) == 2000
    assert max(ids) < NUM_TEXT_TOKENS
    pairs = zip([ord("A"), *ids], ids, strict=False)
    surprises = sum(1 for before, after in pairs if after != successor(before))
    assert 20 < surprises < 200  # 1 - 0.9674 of 2000 is 65; each of the 20 joints may be one more


def test_logit_bias_forces_and_bans(core: EngineCore) -> None:
    assert text(core, "A", logit_bias={66: -100.0}, max_tokens=1) != "B"
    assert text(core, "A", logit_bias={70: 100.0}, max_tokens=1) == "F"


def test_bad_words_never_come(core: EngineCore) -> None:
    assert "D" not in text(core, "A", bad_words=((ord("D"),),), max_tokens=8)
    assert text(core, "A", bad_words=((ord("B"), ord("C"), ord("D")),), max_tokens=3)[:2] == "BC"


def test_logprobs_are_exact(core: EngineCore) -> None:
    (outputs,) = run(core, request("r", "A", logprobs=2, max_tokens=1)).values()
    assert outputs[0].new_logprobs is not None
    (row,) = outputs[0].new_logprobs
    assert row.token_ids == [66, 66, 0]
    assert row.logprobs == pytest.approx([-5.45e-6, -5.45e-6, -WINNING_LOGIT], abs=1e-3)


@pytest.mark.parametrize(("params", "expected"), [({"temperature": 2.0}, 0.9674), ({"repetition_penalty": 2.0}, None)])
def test_processed_logprobs_are_exact(succ: Path, params: dict[str, float], expected: float | None) -> None:
    core = make_core(succ, logprobs_mode="processed_logprobs")
    (outputs,) = run(core, request("r", "BA", logprobs=1, max_tokens=1, **params)).values()
    assert outputs[0].new_logprobs is not None
    best = outputs[0].new_logprobs[0].logprobs[1]
    assert best == pytest.approx(-0.0332 if expected is None else math.log(expected), abs=1e-3)
    core.shutdown()


def scored(core: EngineCore, prompt: str) -> list[LogprobsRow]:
    (outputs,) = run(core, request("r", prompt, prompt_logprobs=2, max_tokens=1)).values()
    rows = outputs[0].prompt_logprobs
    assert rows is not None
    return rows


def test_prompt_logprobs_are_the_same_cold_warm_chunked_and_whole(succ: Path) -> None:
    prompt = ("ABCDEFGXHIJKLMNOPQRST" * 4)[:70]
    whole, chunked = make_core(succ, tokens_per_step=128), make_core(succ, tokens_per_step=16)
    rows = scored(whole, prompt)
    assert len(rows) == 69
    assert scored(whole, prompt) == rows
    for other in (scored(chunked, prompt), scored(chunked, prompt)):
        assert [row.token_ids for row in other] == [row.token_ids for row in rows]
        assert [row.rank for row in other] == [row.rank for row in rows]
    for position, row in enumerate(rows):
        follows = successor(ord(prompt[position])) == ord(prompt[position + 1])
        assert row.logprobs[0] == pytest.approx(0.0 if follows else -WINNING_LOGIT, abs=1e-3)
    whole.shutdown()
    chunked.shutdown()


@pytest.mark.parametrize(("block_size", "tokens_per_step"), [(16, 7), (64, 256), (128, 16)])
def test_random_answers_depend_on_neither_batch_nor_chunks_nor_blocks(
    succ: Path, core: EngineCore, block_size: int, tokens_per_step: int
) -> None:
    requests = [
        request(str(i), "Hello, world! " * (1 + i), seed=i, temperature=2.0, top_p=0.98, ignore_eos=True)
        for i in range(6)
    ]
    alone = [run(core, one) for one in requests]
    other = make_core(succ, block_size=block_size, tokens_per_step=tokens_per_step)
    together = run(other, *requests)
    for one, outputs in zip(requests, alone, strict=True):
        expected = [t for output in outputs[one.request_id] for t in output.new_token_ids]
        assert [t for output in together[one.request_id] for t in output.new_token_ids] == expected
    other.shutdown()


def test_collective_rpc_brings_one_answer_per_worker(core: EngineCore) -> None:
    assert core.call("collective_rpc", "shared_layers") == [{}]
    with pytest.raises(UnsupportedError, match="no method 'nonsense'"):
        core.call("collective_rpc", "nonsense")


def test_the_executor_loads_no_torch() -> None:
    code = f"import sys, {UniProcExecutor.__module__}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
