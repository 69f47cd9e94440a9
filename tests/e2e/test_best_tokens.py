"""Greedy requests whose logits nobody asks for are served without any being stored, and get the same tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from tests.succ import make_succ
from tests.tiny_models import VOCAB_SIZE, save_tiny_model

native = pytest.importorskip("octavo._native", reason="built without the native module")

GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, detokenize=False)
PROMPTS: list[Any] = [
    {"prompt_token_ids": list(range(3 + length, 3 + 2 * length))} for length in (1, 28, 30, 17, 4, 5, 6, 7, 8)
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tiny")
    make_succ(folder / "succ")
    model = str(save_tiny_model(folder / "model", "qwen2"))
    return {"model": model, "tokenizer": str(folder / "succ"), "max_model_len": 256}


FORMS = ({"dtype": "float32"}, {"dtype": "bfloat16"}, {"quantization": "int8"})


@pytest.fixture(scope="module", params=FORMS, ids=str)
def llm(request: pytest.FixtureRequest, tiny: dict[str, Any]) -> Iterator[LLM]:
    with LLM(**tiny, **request.param) as llm:
        yield llm


def asked(
    llm: LLM, params: SamplingParams | list[SamplingParams], prompts: list[Any] = PROMPTS
) -> tuple[list[list[int]], int]:
    """Token ids of each prompt, and in how many steps no logits were stored."""
    before = Counter(native.kernel_counts())
    outputs = llm.generate(prompts, params, use_tqdm=False)
    ran = Counter(native.kernel_counts()) - before
    steps = sum(count for name, count in ran.items() if name.startswith("linear_best."))
    return [list(output.outputs[0].token_ids) for output in outputs], steps


def test_tokens_are_those_of_stored_logits(llm: LLM) -> None:
    plain, num_steps = asked(llm, GREEDY)
    assert num_steps >= 7  # prompts may come in two steps
    assert asked(llm, GREEDY.clone(logprobs=1)) == (plain, 0)
    assert asked(llm, GREEDY.clone(allowed_token_ids=list(range(VOCAB_SIZE)))) == (plain, 0)


def test_other_requests_of_a_step_make_it_store_logits_and_change_no_token(llm: LLM) -> None:
    plain, _ = asked(llm, GREEDY)
    random = SamplingParams(temperature=1.0, seed=5, max_tokens=8, ignore_eos=True, detokenize=False)
    mixed, num_steps = asked(llm, [GREEDY, random, *[GREEDY] * 7])
    assert num_steps == 0
    assert asked(llm, GREEDY, PROMPTS[:7]) == (plain[:7], 0)  # few rows
    assert [mixed[0], *mixed[2:]] == [plain[0], *plain[2:]]


def test_single_steps_bursts_and_eager_steps_agree(tiny: dict[str, Any]) -> None:
    answers = []
    for options, stores_none in (({}, True), ({"max_burst_ms": 0}, True), ({"enforce_eager": True}, False)):
        with LLM(**tiny, **options) as llm:
            found, num_steps = asked(llm, GREEDY)
            assert (num_steps > 0) == stores_none
            answers.append(found)
    assert answers[0] == answers[1] == answers[2]


def test_a_best_token_that_is_no_text_is_passed_over(tiny: dict[str, Any], tmp_path: Path) -> None:
    """A model with more rows than its tokenizer has tokens; its own order is told by logprobs."""
    make_succ(tmp_path / "succ")
    model = {"model": str(save_tiny_model(tmp_path / "model", "llama", vocab_size=1000)), "max_model_len": 256}
    with LLM(**model, tokenizer=str(tmp_path / "succ")) as llm:
        plain, _ = asked(llm, GREEDY)
        assert asked(llm, GREEDY.clone(logprobs=1))[0] == plain
        assert max(token for row in plain for token in row) < 400
