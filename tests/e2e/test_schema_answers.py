"""Answers of a real, small model to JSON schemas, drawn at temperature 1: what ends by itself parses and is valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from octavo import LLM, CompletionOutput, SamplingParams, StructuredOutputParams
from octavo.control.structured_output.backends.llguidance import check_grammar
from octavo.words.errors import RequestError
from tests.refusals import REFUSED_OF_200, counted, documented_refusals
from tests.schemas import REAL_SCHEMAS, Example, generated_schemas, is_valid, real_schemas

NUM_REAL = 200
LONGEST_SHOWN = 2000  # characters of a schema that the model gets to read
ALL_AT_ONCE: dict[str, Any] = {
    "max_num_seqs": NUM_REAL,
    "max_step_ms": 0.0,
    "kv_cache_dtype": "bfloat16",
    "kv_cache_memory_bytes": "4GiB",
}
"""A step of all rows reads the weights once: some seven minutes of one CPU."""


@pytest.fixture(scope="module")
def llm(smollm2: str) -> Iterator[LLM]:
    with LLM(smollm2, max_model_len=4096, max_num_seqs=8) as llm:
        yield llm


def answers(llm: LLM, examples: list[Example], max_tokens: int) -> list[CompletionOutput]:
    """One for each, drawn as the model says at temperature 1."""
    ask = "Write a short JSON document that follows this schema:\n"
    params = [
        SamplingParams(
            temperature=1.0,
            seed=number,
            max_tokens=max_tokens,
            structured_outputs=StructuredOutputParams(json=json.dumps(example.schema)),
        )
        for number, example in enumerate(examples)
    ]
    prompts = [ask + json.dumps(example.schema)[:LONGEST_SHOWN] for example in examples]
    outputs = llm.chat([[{"role": "user", "content": each}] for each in prompts], params, use_tqdm=False)
    return [output.outputs[0] for output in outputs]


def num_ended(examples: list[Example], found: list[CompletionOutput]) -> int:
    """How many ended by themselves; each of those must be valid."""
    ended = [
        (example, answer) for example, answer in zip(examples, found, strict=True) if answer.finish_reason == "stop"
    ]
    for example, answer in ended:
        assert is_valid(example.schema, json.loads(answer.text)), (example.name, answer.text)
    return len(ended)


def test_what_ends_by_itself_is_valid(llm: LLM) -> None:
    examples = generated_schemas(8)
    assert num_ended(examples, answers(llm, examples, 400)) >= 7


def test_so13_a_choice_of_other_scripts_is_one_of_the_list(llm: LLM) -> None:
    for texts in (["🐈", "犬"], ["a", "ab"]):
        shape = StructuredOutputParams(choice=texts)
        params = [SamplingParams(temperature=2.0, seed=seed, structured_outputs=shape) for seed in range(20)]
        found = [each.outputs[0] for each in llm.generate(["A pet:"] * 20, params, use_tqdm=False)]
        assert {choice.text for choice in found} <= set(texts)
        assert {choice.finish_reason for choice in found} == {"stop"}
    assert "ab" in {choice.text for choice in found}


@pytest.mark.models
@pytest.mark.timeout(1800)
def test_nearly_all_of_200_schemas_are_answered_within_1024_tokens(smollm2: str) -> None:
    usable, _ = usable_and_refused(the_200())
    with LLM(smollm2, max_model_len=4096, **ALL_AT_ONCE) as llm:
        found = answers(llm, usable, 1024)
    print(f"{num_ended(usable, found)} of {len(usable)} ended")
    print("cut off:", [example.name for example, each in zip(usable, found, strict=True) if is_cut(each)])
    assert num_ended(usable, found) >= 0.95 * len(usable)


def test_of_200_schemas_those_that_are_refused_are_counted_and_named() -> None:
    examples = the_200()
    usable, refused = usable_and_refused(examples)
    assert counted(refused) == (REFUSED_OF_200 if REAL_SCHEMAS.exists() else {})
    assert all(f"`{keyword}`" in documented_refusals() for keyword in counted(refused))
    assert len(usable) + sum(counted(refused).values()) == len(examples)


def the_200() -> list[Example]:
    """Real schemas where they lie beside the project, else 40 generated ones, which can all be used."""
    return real_schemas()[:NUM_REAL] if REAL_SCHEMAS.exists() else generated_schemas()


def usable_and_refused(examples: list[Example]) -> tuple[list[Example], list[RequestError]]:
    usable, refused = [], []
    for example in examples:
        try:
            check_grammar(StructuredOutputParams(json=json.dumps(example.schema)))
            usable.append(example)
        except RequestError as error:
            refused.append(error)
    return usable, refused


def is_cut(answer: CompletionOutput) -> bool:
    return answer.finish_reason != "stop"
