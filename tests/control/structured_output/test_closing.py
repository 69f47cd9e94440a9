"""JSON that is short of tokens is brought to its end: whole, valid, and soon."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend, LLGuidanceGrammar
from octavo.words.structured_outputs import StructuredOutputParams
from tests.control.structured_output.bytes_vocabulary import EOS, Bytes
from tests.schemas import generated_schemas, is_valid

OPEN = {"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, {"$ref": "#"}, {"type": "array"}]}}
LONGEST_END = 400  # bytes, of schemas that demand a lot


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(Bytes(), [EOS])


def ended(backend: LLGuidanceBackend, schema: Any, beginning: str, draw: random.Random) -> str:
    """The beginning, and what any choice among the narrowed tokens makes of it."""
    grammar = backend.compile(StructuredOutputParams(json=json.dumps(schema)))
    found = list(beginning.encode())
    assert grammar.accept(found)
    for _ in range(LONGEST_END):
        token_id = draw.choice(narrowed(grammar, backend))
        if token_id == EOS:
            break
        assert grammar.accept([token_id])
        found += Bytes().token_bytes(token_id)
        if grammar.is_complete:
            break
    return bytes(found).decode()


def narrowed(grammar: LLGuidanceGrammar, backend: LLGuidanceBackend) -> list[int]:
    row = np.zeros((1, backend.num_mask_words), dtype=np.int32)
    grammar.fill(row, [])
    before = row.copy()
    grammar.narrow(row[0])
    assert not (row & ~before).any(), "nothing is added"
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def test_any_schema_ends_from_anywhere(backend: LLGuidanceBackend) -> None:
    for number, example in enumerate(generated_schemas()):
        draw = random.Random(number)
        for instance, valid in example.instances:
            if valid:
                text = json.dumps(instance, ensure_ascii=False)
                whole = ended(backend, example.schema, text[: draw.randint(0, len(text) - 1)], draw)
                assert is_valid(example.schema, json.loads(whole)), (example.schema, whole)


@pytest.mark.parametrize(
    ("beginning", "whole"),
    [
        ("", "{}"),
        ('{"', '{"":""}'),
        ('{"a": "}}}]', '{"a": "}}}]"}'),
        ('{"a": "x\\n', '{"a": "x\\n"}'),
        ('{"a": {"b": [1, "c', '{"a": {"b": [1, "c"]}}'),
        ('{"a": "b" ,', '{"a": "b" ,"":""}'),
    ],
)
def test_what_is_open_is_closed_at_once(backend: LLGuidanceBackend, beginning: str, whole: str) -> None:
    assert ended(backend, OPEN, beginning, random.Random(0)) == whole
