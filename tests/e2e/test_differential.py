"""The same question asked in every way the engine has: answers must be equal, and a counter proves the way was taken.

Greedy ids are equal and logprobs agree, on random tiny models, one of them in int8, and on SmolLM2 in its own Q4_1 and
Q8_0 blocks: to the bit where the Plan
promises batch invariance, else to 1e-4.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import psutil
import pytest

from octavo import LLM, RequestOutput, SamplingParams
from tests.succ import make_succ
from tests.tiny_models import save_tiny_model

NUM_OUTPUT = 12
PARAMS = SamplingParams(temperature=0.0, max_tokens=NUM_OUTPUT, ignore_eos=True, logprobs=2, detokenize=False)
LENGTHS = (1, 3, 16, 17, 40, 64)
BLOCK_SIZE = 16


class Subject(NamedTuple):
    """A model under test, the prompts it is asked, and its answers when asked one at a time by a plain engine."""

    options: dict[str, Any]
    prompts: list[list[int]]
    alone: list[RequestOutput]
    num_groups: int
    tolerance: float


def random_prompts(vocab_size: int, number: int = 6) -> list[list[int]]:
    rng = random.Random(1)
    lengths = [LENGTHS[index % len(LENGTHS)] for index in range(number)]
    return [[rng.randrange(3, vocab_size) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module", params=["tiny llama", "tiny llama int8", "tiny gemma3", "smollm2"])
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "block_size": BLOCK_SIZE}
    if request.param == "smollm2":
        options["model"] = request.getfixturevalue("smollm2")
        vocab_size = 49_152
    else:
        folder = tmp_path_factory.mktemp("tiny")
        make_succ(folder / "succ")
        _, architecture, *quantization = request.param.split()
        save_tiny_model(folder / "model", architecture)
        options |= {"model": str(folder / "model"), "tokenizer": str(folder / "succ")}
        options["quantization"] = quantization[0] if quantization else None
        vocab_size = 259
    prompts = random_prompts(vocab_size)
    with LLM(**options, enable_prefix_caching=False) as llm:
        alone = [llm.generate({"prompt_token_ids": prompt}, PARAMS, use_tqdm=False)[0] for prompt in prompts]
        num_groups = len(llm.info.kv_cache_config.groups)
        tolerance = 0.0 if llm.info.plan.batch_invariant else 1e-4
    return Subject(options, prompts, alone, num_groups, tolerance)


def ask(llm: LLM, prompts: list[list[int]]) -> list[RequestOutput]:
    return llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], PARAMS, use_tqdm=False)


def metric(llm: LLM, name: str) -> float:
    return sum(each.value for each in llm.get_metrics() if each.name == name)


def assert_same(outputs: list[RequestOutput], expected: list[RequestOutput], tolerance: float) -> None:
    assert len(outputs) == len(expected)
    for output, reference in zip(outputs, expected, strict=True):
        (ours,), (plain,) = output.outputs, reference.outputs
        assert ours.token_ids == plain.token_ids
        for position, wanted in zip(ours.logprobs or [], plain.logprobs or [], strict=True):
            assert {token_id: each.logprob for token_id, each in position.items()} == pytest.approx(
                {token_id: each.logprob for token_id, each in wanted.items()}, rel=0, abs=tolerance
            )


def test_in_a_batch_of_32(subject: Subject) -> None:
    others = random_prompts(250, number=26)
    with LLM(**subject.options) as llm:
        outputs = ask(llm, subject.prompts + others)
        # One at a time they would take 32 x NUM_OUTPUT steps.
        assert metric(llm, "octavo:num_steps") <= NUM_OUTPUT + 3
    assert_same(outputs[: len(subject.prompts)], subject.alone, subject.tolerance)


@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_in_chunks(subject: Subject, chunk: int) -> None:
    with LLM(**subject.options, max_num_batched_tokens=chunk, max_num_seqs=min(chunk, 4)) as llm:
        outputs = ask(llm, subject.prompts)
        num_tokens = sum(map(len, subject.prompts)) + len(subject.prompts) * (NUM_OUTPUT - 1)
        assert metric(llm, "octavo:num_steps") >= num_tokens / chunk
    assert_same(outputs, subject.alone, subject.tolerance)


def test_with_a_warm_prefix(subject: Subject) -> None:
    with LLM(**subject.options) as llm:
        ask(llm, subject.prompts)
        outputs = ask(llm, subject.prompts)
        assert metric(llm, "vllm:prefix_cache_hits") > 0
    expected = [(length - 1) // BLOCK_SIZE * BLOCK_SIZE for length in map(len, subject.prompts)]
    assert [output.num_cached_tokens for output in outputs] == expected
    assert_same(outputs, subject.alone, subject.tolerance)


def test_after_a_forced_preemption(subject: Subject) -> None:
    # Six blocks a group hold the longest request alone, and not two of the longer ones together.
    blocks = 1 + 5 * subject.num_groups
    options = subject.options | {"num_gpu_blocks_override": blocks, "max_num_seqs": 4, "max_num_batched_tokens": 64}
    with LLM(**options) as llm:
        outputs = ask(llm, subject.prompts)
        assert metric(llm, "vllm:num_preemptions") > 0
    assert_same(outputs, subject.alone, subject.tolerance)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_at_other_block_sizes(subject: Subject, block_size: int) -> None:
    with LLM(**subject.options | {"block_size": block_size}) as llm:
        outputs = ask(llm, subject.prompts)
        assert {group.spec.block_size for group in llm.info.kv_cache_config.groups} == {block_size}
    assert_same(outputs, subject.alone, subject.tolerance)


def test_op_by_op(subject: Subject) -> None:
    with LLM(**subject.options, enforce_eager=True) as llm:
        outputs = ask(llm, subject.prompts)
        assert llm.info.graph is not None and not llm.info.graph.captured
    assert_same(outputs, subject.alone, subject.tolerance)


def test_in_a_background_process(subject: Subject) -> None:
    with LLM(**subject.options, multiprocess=True) as llm:
        outputs = ask(llm, subject.prompts)
        assert any("octavo.engine.core_proc" in child.cmdline() for child in psutil.Process().children())
    assert_same(outputs, subject.alone, subject.tolerance)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("windowed")
    make_succ(folder / "succ")
    save_tiny_model(folder / "model", "gemma3")
    yield {"model": str(folder / "model"), "tokenizer": str(folder / "succ"), "max_model_len": 256, "block_size": 16}


def test_windows_served_as_full_attention_change_no_answer(windowed: dict[str, Any]) -> None:
    prompts = random_prompts(250)
    with LLM(**windowed) as hybrid, LLM(**windowed, disable_hybrid_kv_cache_manager=True) as full:
        assert len(hybrid.info.kv_cache_config.groups) > len(full.info.kv_cache_config.groups) == 1
        tolerance = 0.0 if hybrid.info.plan.batch_invariant else 1e-4
        assert_same(ask(hybrid, prompts), ask(full, prompts), tolerance)


def test_sampled_answers_do_not_depend_on_batch_mates_or_chunks(subject: Subject) -> None:
    params = PARAMS.clone(temperature=1.0, seed=11, logprobs=None)
    batch = [{"prompt_token_ids": prompt} for prompt in subject.prompts]
    with LLM(**subject.options) as llm:
        together = llm.generate(batch, params, use_tqdm=False)
        alone = [llm.generate(prompt, params, use_tqdm=False)[0] for prompt in batch]
    with LLM(**subject.options, max_num_batched_tokens=16, max_num_seqs=2) as llm:
        chunked = llm.generate(batch, params, use_tqdm=False)
    ids = [[output.outputs[0].token_ids for output in outputs] for outputs in (together, alone, chunked)]
    assert ids[0] == ids[1] == ids[2]
