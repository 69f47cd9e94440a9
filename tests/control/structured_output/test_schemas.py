"""What a JSON schema's grammar takes, against instances of which somebody else said whether they are valid."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import permutations
from typing import Any

import pytest

from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend, LLGuidanceGrammar
from octavo.words.errors import RequestError
from octavo.words.structured_outputs import StructuredOutputParams
from tests.control.structured_output.bytes_vocabulary import EOS, Bytes, allowed
from tests.refusals import REFUSED_OF_REAL, counted, documented_refusals, keywords_of, reason_of
from tests.schemas import REAL_SCHEMAS, SUITE, Example, generated_schemas, real_schemas, suite


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(Bytes(), [EOS])


def takes(grammar: LLGuidanceGrammar, backend: LLGuidanceBackend, instance: Any) -> bool:
    grammar = grammar.copy()
    text = json.dumps(instance, ensure_ascii=False)
    return grammar.accept(list(text.encode())) and (grammar.is_complete or EOS in allowed(grammar, backend))


def compiled(
    backend: LLGuidanceBackend, examples: Iterable[Example], refused: dict[str, RequestError]
) -> Iterator[tuple[Example, LLGuidanceGrammar]]:
    """Those that can be used; the others go to ``refused`` with the reason."""
    for example in examples:
        try:
            yield example, backend.compile(StructuredOutputParams(json=json.dumps(example.schema)))
        except RequestError as error:
            refused[example.name] = error


def test_generated_schemas_take_what_is_valid_and_nothing_else(backend: LLGuidanceBackend) -> None:
    refused: dict[str, RequestError] = {}
    counts = {True: 0, False: 0}
    for example, grammar in compiled(backend, generated_schemas(), refused):
        for instance, is_valid in example.instances:
            assert takes(grammar, backend, instance) is is_valid, (example.schema, instance)
            counts[is_valid] += 1
    assert not refused and min(counts.values()) > 100


REFUSED: list[tuple[Any, str, str]] = [
    ({"not": {"type": "null"}, "properties": {"a": {"uniqueItems": True}}}, "not", '"not"'),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf", "oneOf"),
    ({"type": "string", "format": "css-color"}, "format", "css-color"),
    ({"type": "string", "pattern": "^$[a-z]*$"}, "pattern", "^$[a-z]*$"),
    ({"properties": {"a": {"type": "integer"}}, "minProperties": 1}, "minProperties", "min/maxProperties"),
    ({"$ref": "http://127.0.0.1:1/other.json"}, "$ref", "http://127.0.0.1:1/other.json"),
    ({"patternProperties": {"a": {"type": "null"}, "b": {"type": "string"}}}, "patternProperties", "/a/ and /b/"),
    ({"multipleOf": 86_400}, "multipleOf", "multipleOf 86400"),
    ({"$defs": {"a": False}, "$ref": "#/$defs/a"}, "false", "#/$defs/a"),
]
"""What of real schemas and of the test suite cannot be used, the keyword, and what the refusal says of it."""


@pytest.mark.parametrize(("schema", "keyword", "named"), REFUSED)
def test_refused_schemas_are_named(backend: LLGuidanceBackend, schema: Any, keyword: str, named: str) -> None:
    refused: dict[str, RequestError] = {}
    assert not list(compiled(backend, [Example("it", schema, [])], refused))
    reason = reason_of(refused["it"])
    assert keyword in keywords_of(reason) and named in reason
    assert f"`{keyword}`" in documented_refusals()


@pytest.mark.skipif(not REAL_SCHEMAS.exists(), reason="the real schemas are not beside the project")
def test_real_schemas_take_what_is_valid_and_nothing_else(backend: LLGuidanceBackend) -> None:
    refused: dict[str, RequestError] = {}
    num_instances = 0
    for example, grammar in compiled(backend, real_schemas(), refused):
        for instance, is_valid in example.instances:
            assert takes(grammar, backend, instance) is is_valid, (example.name, instance)
            num_instances += 1
    assert num_instances == 844
    assert counted(refused.values()) == REFUSED_OF_REAL and len(refused) == 22


@pytest.mark.skipif(not SUITE.exists(), reason="JSON-Schema-Test-Suite is not beside the project")
def test_the_test_suite_of_json_schema_is_followed_as_far_as_its_schemas_can_be_used(
    backend: LLGuidanceBackend,
) -> None:
    """No invalid instance is taken; a valid one is left out only for the three reasons that the docs name."""
    refused: dict[str, RequestError] = {}
    num_followed = 0
    for example, grammar in compiled(backend, suite(), refused):
        for instance, is_valid in example.instances:
            if takes(grammar, backend, instance) is not is_valid:
                assert is_valid, (example.name, instance)
                assert is_left_out(example, grammar, backend, instance), (example.name, instance)
            else:
                num_followed += 1
    assert num_followed >= 595 and len(refused) <= 208
    named = counted(refused.values())
    assert set(named) >= {"not", "if", "contains", "unevaluatedProperties", "$dynamicRef", "oneOf", "$ref", "format"}
    assert all(f"`{keyword}`" in documented_refusals() for keyword in named), named


def is_left_out(example: Example, grammar: LLGuidanceGrammar, backend: LLGuidanceBackend, instance: Any) -> bool:
    """A format that is held to, a whole number with a fraction, or properties in another order than the schema's."""
    if example.name.startswith("format/"):
        return True
    if isinstance(instance, dict):
        return any(takes(grammar, backend, dict(order)) for order in permutations(instance.items()))
    return any(isinstance(number, float) and number.is_integer() for number in _flat(instance))


def _flat(instance: Any) -> list[Any]:
    return list(instance) if isinstance(instance, list) else [instance]
