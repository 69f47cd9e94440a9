"""A request's logits are the same bytes whatever else the engine does, and a counter proves that it did it.

Two requests are watched by a logits processor that keeps the rows the model gave; what else the batch holds, how
prompts are cut, what the cache knows, how many threads compute and how large blocks are, must not show in them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from octavo import LLM, SamplingParams
from octavo.checkpoint.catalogue import models_dir
from octavo.device.models.table import MODELS
from tests.own_logits_processors import RawLogits
from tests.succ import make_succ
from tests.tiny_models import save_tiny_model

pytest.importorskip("octavo._native", reason="built without the native module")

NUM_OUTPUT = 4
BLOCK_SIZE = 16
LENGTHS = {"short": 5, "long": 70}
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=True, detokenize=False)
PROCESSOR = "tests.own_logits_processors:RawLogits"
PLAIN = {"max_model_len": 256, "block_size": BLOCK_SIZE, "logits_processors": PROCESSOR}

SMOLLM2 = {
    "smollm2 in bfloat16": {"quantization": "none", "dtype": "bfloat16"},
    "smollm2 in int8": {"quantization": "int8"},
    "smollm2 in Q4_1": {},
}

Logits = dict[tuple[str, int], bytes]


class Subject(NamedTuple):
    """A model under test, and the logits of the watched requests, each asked alone of a plain engine."""

    options: dict[str, Any]
    alone: Logits
    num_groups: int


@pytest.fixture(scope="module", params=[*SMOLLM2, "tiny gemma3", pytest.param("gemma3-270m", marks=pytest.mark.models)])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    options: dict[str, Any]
    if request.param in SMOLLM2:
        options = {"model": request.getfixturevalue("smollm2"), **SMOLLM2[request.param]}
    elif request.param == "gemma3-270m":
        if not (models_dir() / request.param).is_dir():
            pytest.skip("gemma3-270m is not in the model cache: python scripts/test_models.py gemma3-270m")
        options = {"model": request.param}
    else:
        folder = tmp_path_factory.mktemp("tiny")
        make_succ(folder / "succ")
        options = {"model": str(save_tiny_model(folder / "model", "gemma3")), "tokenizer": str(folder / "succ")}
    return make_subject(options | PLAIN)


def make_subject(options: dict[str, Any]) -> Subject:
    with LLM(**options, enable_prefix_caching=False) as llm:
        assert llm.info.graph is not None and llm.info.graph.captured
        alone = {}
        for name in LENGTHS:
            alone |= watched_logits(llm, [name])
        assert RawLogits.most_rows == 1
        return Subject(options, alone, len(llm.info.kv_cache_config.groups))


def watched_logits(llm: LLM, names: list[str], others: Sequence[int] = ()) -> Logits:
    """The logits behind every answer of the named requests, asked behind others with prompts of these lengths."""
    RawLogits.seen.clear()
    RawLogits.most_rows = 0
    rng = random.Random(1)
    prompts = {name: [rng.randrange(3, 250) for _ in range(length)] for name, length in LENGTHS.items()}
    asked = [[rng.randrange(3, 250) for _ in range(length)] for length in others] + [prompts[name] for name in names]
    params = [PARAMS] * len(others) + [PARAMS.clone(extra_args={"watched": name}) for name in names]
    llm.generate([{"prompt_token_ids": prompt} for prompt in asked], params, use_tqdm=False)
    return dict(RawLogits.seen)


def assert_same_bytes(found: Logits, expected: Logits) -> None:
    assert found.keys() == expected.keys()
    differing = [where for where, row in found.items() if row != expected[where]]
    assert not differing, f"logits differ at {differing}"


def metric(llm: LLM, name: str) -> float:
    return sum(each.value for each in llm.get_metrics() if each.name == name)


@pytest.mark.parametrize("num_requests", [2, 33, 64])
def test_in_a_batch(subject: Subject, num_requests: int) -> None:
    with LLM(**subject.options) as llm:
        logits = watched_logits(llm, list(LENGTHS), others=[3] * (num_requests - len(LENGTHS)))
    assert RawLogits.most_rows == num_requests
    assert_same_bytes(logits, subject.alone)


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_in_chunks(subject: Subject, chunk: int) -> None:
    with LLM(**subject.options, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 4)) as llm:
        logits = watched_logits(llm, list(LENGTHS))
        assert metric(llm, "octavo:num_steps") >= sum(LENGTHS.values()) / chunk
    assert_same_bytes(logits, subject.alone)


def test_with_a_cold_and_a_warm_prefix(subject: Subject) -> None:
    with LLM(**subject.options) as llm:
        cold = watched_logits(llm, list(LENGTHS))
        assert metric(llm, "vllm:prefix_cache_hits") == 0
        warm = watched_logits(llm, list(LENGTHS))
        assert metric(llm, "vllm:prefix_cache_hits") == LENGTHS["long"] // BLOCK_SIZE * BLOCK_SIZE
    assert_same_bytes(cold, subject.alone)
    assert_same_bytes(warm, subject.alone)


def test_after_a_preemption(subject: Subject) -> None:
    # All fit, until those in front come to the end of their first blocks: then the last one, the longest, has to go.
    blocks = 1 + 12 * subject.num_groups
    with LLM(**subject.options, num_gpu_blocks_override=blocks, max_num_batched_tokens=256, watermark=0.0) as llm:
        logits = watched_logits(llm, list(LENGTHS), others=[14] * 6)
        assert metric(llm, "vllm:num_preemptions") > 0
    assert_same_bytes(logits, subject.alone)


def test_op_by_op(subject: Subject) -> None:
    with LLM(**subject.options, enforce_eager=True) as llm:
        logits = watched_logits(llm, list(LENGTHS))
        assert llm.info.graph is not None and not llm.info.graph.captured
    assert_same_bytes(logits, subject.alone)


@pytest.mark.parametrize("num_threads", [1, 2, 8])
def test_with_other_numbers_of_threads(subject: Subject, num_threads: int) -> None:
    with LLM(**subject.options, num_threads=num_threads) as llm:
        logits = watched_logits(llm, list(LENGTHS))
        assert llm.info.plan.num_threads == num_threads
    assert_same_bytes(logits, subject.alone)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_at_other_block_sizes(subject: Subject, block_size: int) -> None:
    with LLM(**subject.options | {"block_size": block_size}) as llm:
        logits = watched_logits(llm, list(LENGTHS))
        assert {group.spec.block_size for group in llm.info.kv_cache_config.groups} == {block_size}
    assert_same_bytes(logits, subject.alone)


def test_a_kernel_that_splits_k_by_the_number_of_rows_is_seen(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("split")
    make_succ(folder / "succ")
    options = {"model": str(save_tiny_model(folder / "model", "llama")), "tokenizer": str(folder / "succ"), **PLAIN}
    monkeypatch.setitem(MODELS, "llama", "tests.device.models.odd_llamas:SplitKLlama")
    subject = make_subject(options)
    with LLM(**options) as llm:
        logits = watched_logits(llm, list(LENGTHS), others=[3] * 31)
    with pytest.raises(AssertionError, match="logits differ at"):
        assert_same_bytes(logits, subject.alone)
