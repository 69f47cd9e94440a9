"""Beam search against Transformers on random tiny models, and against itself in every way the engine has."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel

from octavo import (
    LLM,
    BeamSearch,
    BeamSearchOutput,
    BeamSearchParams,
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputParams,
)
from octavo.words.errors import RequestError
from tests.succ import EOS, NUM_TEXT_TOKENS
from tests.tiny_models import VOCAB_SIZE, save_tiny_model

LENGTHS = (1, 15, 16, 17, 40)
END_IDS = [2, EOS]
"""Those of the random model, and of the tokenizer it is served with."""
WAYS: dict[str, dict[str, Any]] = {
    "prefix cache": {},
    "chunks": {"max_num_batched_tokens": 7, "max_num_seqs": 3},
    "one seat": {"max_num_seqs": 1},
    "hardly any room": {"max_num_seqs": 8},
    "reference kernels": {"kernels": "reference"},
    "background process": {"multiprocess": True},
}


def prompts() -> list[dict[str, Any]]:
    rng = random.Random(5)
    return [{"prompt_token_ids": [rng.randrange(3, 256) for _ in range(length)]} for length in LENGTHS]


def metric(llm: LLM, name: str) -> float:
    return sum(each.value for each in llm.get_metrics() if each.name == name)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("beams") / request.param, request.param)


@pytest.fixture(scope="module")
def options(folder: Path, succ: Path) -> dict[str, Any]:
    sizes = {"max_model_len": 96, "block_size": 16, "dtype": "float32", "num_gpu_blocks_override": 300}
    return {"model": str(folder), "tokenizer": str(succ), "generation_config": "octavo", **sizes}


@cache
def oracle(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model


def expected(folder: Path, prompt: list[int], **wishes: Any) -> list[tuple[list[int], float]]:
    """Transformers' answers, best first, without what they are filled up with."""
    config = GenerationConfig(
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=0,
        eos_token_id=END_IDS,
        suppress_tokens=list(range(NUM_TEXT_TOKENS, VOCAB_SIZE)),
        **wishes,
    )
    found = oracle(folder).generate(torch.tensor([prompt]), generation_config=config)
    answers = []
    for ids, score in zip(found.sequences[:, len(prompt) :].tolist(), found.sequences_scores.tolist(), strict=True):
        end = next((index for index, token_id in enumerate(ids, 1) if token_id in END_IDS), len(ids))
        answers.append((ids[:end], score))
    return answers


def answers(output: BeamSearchOutput) -> list[tuple[list[int], float]]:
    return [(sequence.output.token_ids, sequence.score) for sequence in output.sequences]


SHAPES = [(4, 1.0, False, 10), (3, 0.0, "never", 12), (2, 2.0, True, 8), (5, -0.5, False, 6)]


@pytest.fixture(scope="module")
def plain(options: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**options, enable_prefix_caching=False) as llm:
        yield llm


@pytest.mark.parametrize(("width", "penalty", "early_stopping", "max_tokens"), SHAPES)
def test_answers_and_scores_are_those_of_transformers(
    folder: Path, plain: LLM, width: int, penalty: float, early_stopping: bool | str, max_tokens: int
) -> None:
    wishes = BeamSearchParams(
        beam_width=width, max_tokens=max_tokens, length_penalty=penalty, early_stopping=early_stopping
    )
    before = metric(plain, "octavo:num_beam_forks")
    outputs = plain.beam_search(prompts(), wishes)
    assert metric(plain, "octavo:num_beam_forks") > before
    assert metric(plain, "vllm:kv_cache_usage_perc") == 0
    for prompt, output in zip(prompts(), outputs, strict=True):
        theirs = expected(
            folder,
            prompt["prompt_token_ids"],
            num_beams=width,
            num_return_sequences=width,
            max_new_tokens=max_tokens,
            length_penalty=penalty,
            early_stopping=early_stopping,
        )
        assert [ids for ids, _ in answers(output)] == [ids for ids, _ in theirs]
        assert [score for _, score in answers(output)] == pytest.approx([score for _, score in theirs], rel=1e-4)


@pytest.mark.parametrize("length", [47, 54, 60, 64])
def test_beams_share_what_they_have_in_common(plain: LLM, length: int) -> None:
    """Four of them, where ten tokens cross the end of a block, and where they do not."""
    cache, engine = plain.info.kv_cache_config, plain._engine
    params = SamplingParams(n=4, beam_search=BeamSearch(width=4), max_tokens=10, ignore_eos=True, temperature=0.0)
    engine.add_request("r", {"prompt_token_ids": list(range(3, 3 + length))}, params)
    most = 0.0
    while engine.has_unfinished_requests():
        engine.step()
        most = max(most, metric(plain, "vllm:kv_cache_usage_perc") * (cache.num_usable_blocks))
    num_prompt_blocks = math.ceil(length / 16)
    assert num_prompt_blocks < most <= len(cache.groups) * (num_prompt_blocks + 8)


def test_one_beam_is_greedy(plain: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=6)
    greedy = plain.generate(prompts(), params, use_tqdm=False)
    outputs = plain.beam_search(prompts(), BeamSearchParams(beam_width=1, max_tokens=6))
    found = [answers(output)[0] for output in outputs]
    assert [ids for ids, _ in found] == [output.outputs[0].token_ids for output in greedy]


def test_a_limit_of_prompts_at_once_changes_no_answer(plain: LLM) -> None:
    wishes = BeamSearchParams(beam_width=2, max_tokens=4)
    wanted = [answers(output) for output in plain.beam_search(prompts(), wishes)]
    most = {}
    for limit in (None, 1, 2):
        plain.start_profile()
        found = plain.beam_search(prompts(), wishes, concurrency_limit=limit)
        steps = [span.facts["requests"] for span in plain.stop_profile() if span.name == "schedule"]
        assert [answers(output) for output in found] == wanted
        most[limit] = max(map(len, steps))
    assert most == {None: 2 * len(prompts()), 1: 2, 2: 4}
    with pytest.raises(RequestError, match="concurrency_limit must be at least 1"):
        plain.beam_search(prompts(), wishes, concurrency_limit=0)


@pytest.mark.parametrize("way", WAYS)
def test_answers_are_the_same_in_every_way(plain: LLM, options: dict[str, Any], way: str) -> None:
    wishes = BeamSearchParams(beam_width=4, max_tokens=8)
    wanted = [answers(output) for output in plain.beam_search(prompts(), wishes)]
    own = dict(WAYS[way])
    if way == "hardly any room":
        own["num_gpu_blocks_override"] = 1 + 6 * len(plain.info.kv_cache_config.groups)
    with LLM(**{**options, **own}) as llm:
        for _ in range(2 if way == "prefix cache" else 1):
            found = [answers(output) for output in llm.beam_search(prompts(), wishes)]
            assert [[ids for ids, _ in each] for each in found] == [[ids for ids, _ in each] for each in wanted]
            scores = [[score for _, score in each] for each in found]
            close = 0.0 if plain.info.plan.batch_invariant == llm.info.plan.batch_invariant is True else 1e-4
            for ours, theirs in zip(scores, wanted, strict=True):
                assert ours == pytest.approx([score for _, score in theirs], rel=close, abs=0.0)
        assert metric(llm, "octavo:num_beam_forks") > 0
        if way == "prefix cache":
            assert metric(llm, "vllm:prefix_cache_hits") > 0
        if way == "hardly any room":
            assert metric(llm, "vllm:num_preemptions") > 0


def test_a_search_among_other_requests_changes_neither(plain: LLM) -> None:
    def ask(params: list[SamplingParams]) -> list[list[list[int]]]:
        outputs = plain.generate(prompts()[: len(params)], params, use_tqdm=False)
        return [[choice.token_ids for choice in output.outputs] for output in outputs]

    search = SamplingParams(n=3, beam_search=BeamSearch(width=3), max_tokens=8)
    sampled = SamplingParams(temperature=1.0, seed=3, max_tokens=8, n=2)
    together = ask([search, sampled, search])
    assert together == [ask([search])[0], ask([search, sampled])[1], ask([search, search, search])[2]]


def test_choices_come_with_logprobs_and_the_prompt_is_counted_once(plain: LLM) -> None:
    params = SamplingParams(n=2, beam_search=BeamSearch(width=4), max_tokens=5, logprobs=3)
    (output,) = plain.generate(prompts()[1], params, use_tqdm=False)
    assert [choice.index for choice in output.outputs] == [0, 1]
    for choice in output.outputs:
        rows = choice.logprobs or []
        assert len(rows) == len(choice.token_ids) and all(3 <= len(row) <= 4 for row in rows)
        total = sum(row[token].logprob for row, token in zip(rows, choice.token_ids, strict=True))
        assert choice.cumulative_logprob == pytest.approx(total)
    first, second = (choice.cumulative_logprob / len(choice.token_ids) for choice in output.outputs)  # type: ignore[operator]
    assert first >= second


def test_penalties_biases_and_what_is_allowed_hold_for_beams(plain: LLM) -> None:
    params = SamplingParams(
        n=3,
        beam_search=BeamSearch(width=3),
        max_tokens=4,
        ignore_eos=True,
        allowed_token_ids=[5, 6],
        bad_words=["\x05"],
    )
    (output,) = plain.generate(prompts()[1], params, use_tqdm=False)
    assert output.outputs[0].token_ids == [6, 6, 6, 6]
    assert [choice.finish_reason for choice in output.outputs] == ["length", "error", "error"]
    assert "1 answers only" in str(output.outputs[1].error)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"structured_outputs": StructuredOutputParams(regex="a")}, "structured_outputs and beam search"),
        ({"stop": "x"}, "stop and beam search"),
        ({"prompt_logprobs": 1}, "prompt_logprobs and beam search"),
        ({"logprobs": 9}, "0 to 8"),
        ({"n": 5}, "must not exceed beam_width"),
        ({"repetition_detection": RepetitionDetectionParams(max_pattern_size=3)}, "repetition_detection and beam"),
    ],
    ids=str,
)
def test_what_does_not_go_with_beams_is_refused_in_one_line(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        SamplingParams(beam_search=BeamSearch(width=4), **wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "wrong", [{"width": 0}, {"width": 2, "early_stopping": "soon"}, {"width": 2, "length_penalty": "long"}], ids=str
)
def test_a_wrong_shape_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="must be"):
        BeamSearch(**wrong)


def test_speculation_is_refused(options: dict[str, Any]) -> None:
    with LLM(**options, speculative_method="ngram") as llm, pytest.raises(RequestError, match="speculative"):
        llm.beam_search(prompts(), BeamSearchParams(beam_width=2))


def test_dt04_special_tokens_are_shown_as_by_any_other_route(succ: Path) -> None:
    with LLM(str(succ), max_model_len=64, kv_cache_memory_bytes="4MiB", disable_log_stats=True) as llm:
        search = {"beam_search": BeamSearch(width=2)}
        for way, wanted in (
            ({}, "xyz"),
            ({"skip_special_tokens": False, "ignore_eos": True, "max_tokens": 5}, "xyz<eos>A"),
        ):
            for more in ({}, search):
                params = SamplingParams(temperature=0.0, **{"max_tokens": 20, **way, **more})  # type: ignore[arg-type]
                (output,) = llm.generate("w", params, use_tqdm=False)
                assert output.outputs[0].text == wanted, more
        (output,) = llm.beam_search("w", BeamSearchParams(beam_width=2, max_tokens=20))
        assert (output.sequences[0].text, output.sequences[0].tokens[-1]) == ("wxyz", EOS)
