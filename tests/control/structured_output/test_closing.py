"""JSON that is short of tokens is brought to its end: whole, valid, and soon."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend, LLGuidanceGrammar
from octavo.control.structured_output.backends.llguidance_end import MOST_MASKS
from octavo.control.structured_output.closing import (
    LONGEST_END,
    LONGEST_TEXT,
    ClosesInTime,
    JsonCloser,
    LastTokensClose,
    NeverCloses,
    Row,
    closing_of,
)
from octavo.control.structured_output.grammar import Way
from octavo.words.structured_outputs import StructuredOutputParams
from tests.control.structured_output.bytes_vocabulary import EOS, Bytes
from tests.schemas import generated_schemas, is_valid

OPEN = {"type": "object", "additionalProperties": {"anyOf": [{"type": "string"}, {"$ref": "#"}, {"type": "array"}]}}
MOST_BYTES = 400  # to end with, of schemas that demand a lot


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(Bytes(), [EOS])


def ended(backend: LLGuidanceBackend, schema: Any, beginning: str, draw: random.Random) -> str:
    """The beginning, and what any choice among the narrowed tokens makes of it."""
    grammar = backend.compile(StructuredOutputParams(json=json.dumps(schema)))
    found = list(beginning.encode())
    assert grammar.accept(found)
    for _ in range(MOST_BYTES):
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


def num_to_end(grammar: LLGuidanceGrammar, drafts: bytes, most: int) -> int:
    way = grammar.way_to_end(list(drafts), most)
    return most if way is None else len(way)


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


@pytest.mark.parametrize(
    ("beginning", "num_tokens"),
    [('{"a": "b"', 1), ('{"a": {"b": [1, "c', 4), ("", 2), ('{"', 5)],
)
def test_the_soonest_end_is_counted_and_the_grammar_stays_where_it_is(
    backend: LLGuidanceBackend, beginning: str, num_tokens: int
) -> None:
    grammar = backend.compile(StructuredOutputParams(json=OPEN))
    assert grammar.accept(list(beginning.encode()))
    allowed_before = narrowed(grammar, backend)
    assert num_to_end(grammar, b"", 100) == num_tokens
    assert num_to_end(grammar, b"", num_tokens - 1) == num_tokens - 1, "as far as it is asked to look"
    assert narrowed(grammar, backend) == allowed_before


def test_the_soonest_end_after_drafts_is_theirs(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(json=OPEN))
    assert [num_to_end(grammar, drafts, 100) for drafts in (b"{", b'{"a', b'{"a":[[[', b"no")] == [1, 5, 4, 0]


class CountingCloser(JsonCloser):
    """Counts the masks that were looked at."""

    num_looks = 0

    def narrow(self, row: Row) -> bool:
        self.num_looks += 1
        return super().narrow(row)


class CountingBackend(LLGuidanceBackend):
    def __init__(self) -> None:
        super().__init__(Bytes(), [EOS])
        self.closer = CountingCloser([Bytes().token_bytes(number) for number in range(Bytes.num_text_tokens)], [EOS])
        self._closer = lambda: self.closer

    def num_looks(self, look: Callable[[], object]) -> int:
        before = self.closer.num_looks
        look()
        return self.closer.num_looks - before


@pytest.mark.parametrize(
    ("schema", "num_tokens"),
    [
        ({"type": "string", "pattern": "never.*comes"}, LONGEST_END),
        ({"type": "string", "format": "uri"}, LONGEST_END),
        ({"type": "string", "minLength": 5}, 1 + 3 + 1),  # two bytes are a usual token
        ({"type": "string", "minLength": 101}, 1 + 51 + 1),
        ({"type": "string", "minLength": 2 * LONGEST_TEXT}, 1 + LONGEST_TEXT + 1),
        ({"type": "string", "minLength": 2 * LONGEST_TEXT + 3}, LONGEST_END),
    ],
)
def test_a_text_that_may_not_end_yet_is_gone_through_without_masks(schema: Any, num_tokens: int) -> None:
    backend = CountingBackend()
    grammar = backend.compile(StructuredOutputParams(json=schema))
    assert num_to_end(grammar, b"", LONGEST_END) == num_tokens
    assert backend.closer.num_looks <= 12


def test_a_known_way_is_followed_where_it_leads_to_the_end() -> None:
    names = "abcdefgh"
    needs = {"type": "object", "properties": {n: {"type": "integer"} for n in names}, "required": list(names)}
    backend = CountingBackend()
    made = backend.compile(StructuredOutputParams(json=needs))
    alone = made.way_to_end([], 100)
    assert alone is not None and len(alone) > 40
    assert backend.num_looks(lambda: made.copy().way_to_end([], 100)) == 0, "from the start it is known"
    assert made.way_to_end([], len(alone)) == alone and made.way_to_end([], len(alone) - 1) is None
    grammar = made.copy()
    assert grammar.accept(list(b'{"a":12,"b": 3'))
    for _ in range(2):
        assert backend.num_looks(lambda: grammar.way_to_end([], 100)) <= 3, "it is found again on the way"
        way = grammar.way_to_end([], 100)
        assert way is not None and grammar.way_to_end([], len(way)) == way
        assert grammar.way_to_end([], len(way) - 1) is None
        ended = grammar.copy()
        assert ended.accept(way) and ended.is_complete
        assert grammar.accept(list(b"44"))


def test_an_end_that_takes_many_masks_to_find_is_known_from_the_start_or_not_at_all() -> None:
    names = [f"n{number}" for number in range(50)]
    needs = {"type": "object", "properties": {n: {"type": "integer"} for n in names}, "required": names}
    backend = CountingBackend()
    either = {"anyOf": [needs, {"type": "array", "minItems": 200}]}
    grammar = backend.compile(StructuredOutputParams(json=needs))
    long_way = grammar.way_to_end([], LONGEST_END)
    assert long_way is not None and len(long_way) > 2 * MOST_MASKS
    assert grammar.accept(list(b'{"n0": 12'))
    assert backend.num_looks(lambda: grammar.way_to_end([], LONGEST_END)) <= 3
    grammar = backend.compile(StructuredOutputParams(json=either))
    assert grammar.accept(list(b"[1"))
    assert backend.num_looks(lambda: grammar.way_to_end([], LONGEST_END)) == MOST_MASKS
    assert grammar.way_to_end([], LONGEST_END) is None


def test_a_known_way_that_leads_nowhere_is_left_aside(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(json=OPEN))
    assert grammar.accept(list(b'{"a": {"b": [1, "c'))
    for known in (list(b'":""}'), list(b'"]'), list(b"}]}"), list(b"xx"), [EOS]):
        way = grammar.way_to_end([], 100, known)
        assert way is not None and bytes(way) == b'"]}}'
    assert grammar.way_to_end([], 100, list(b'zz"]}}')) == list(b'"]}}')


def ends_when(schema: Any, beginning: str, max_tokens: int, backend: LLGuidanceBackend, filler: bytes) -> str:
    """The beginning, the filler as long as nothing closes, and what any choice makes of it, within ``max_tokens``."""
    closing, draw = ClosesInTime(), random.Random(0)
    grammar = backend.compile(StructuredOutputParams(json=schema))
    found: list[int] = []
    while len(found) < max_tokens and not grammar.is_complete:
        begins = closing.first_row(grammar, [], max_tokens - len(found)) is not None
        if begins:
            token_id = draw.choice(narrowed(grammar, backend))
        else:
            token_id = beginning.encode()[len(found)] if len(found) < len(beginning) else filler[0]
        assert grammar.accept([token_id])
        found.append(token_id)
    return b"".join(Bytes().token_bytes(each) for each in found).decode()


def test_closing_begins_in_time_and_not_before(backend: LLGuidanceBackend) -> None:
    for max_tokens in (20, 37, 60, 100, 300, 900):
        text = ends_when(OPEN, '{"a": {"b": [1, "', max_tokens, backend, b"x")
        assert list(json.loads(text)) == ["a"]
        assert max_tokens * 3 // 4 - 12 <= len(text) <= max_tokens
    needs = {"type": "object", "properties": {n: {"type": "integer"} for n in "abcdefgh"}, "required": list("abcdefgh")}
    text = ends_when(needs, '{"a": ', 100, backend, b"1")
    assert sorted(json.loads(text)) == list("abcdefgh"), "what is required still fits"


def test_where_an_answer_cannot_end_in_time_it_goes_the_soonest_way(backend: LLGuidanceBackend) -> None:
    assert ends_when(OPEN, '{"a": ', 4, backend, b"x") == "{}"
    needs = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    assert ends_when(needs, "{     ", 8, backend, b"x") == '{"name":'


def test_drafts_do_not_change_where_closing_begins(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(json=OPEN))
    assert grammar.accept(list(b'{"a": {"b": "'))
    plain, drafting = ClosesInTime(), ClosesInTime()
    begins = [plain.first_row(grammar, [], left) is not None for left in range(40, 0, -1)]
    first = begins.index(True)
    for left in (40, 38, 36):  # rejected: each row is looked at again
        found = drafting.first_row(grammar, list(b"x" * 36), left)
        assert found is not None and 40 - left + found == first
    assert drafting.first_row(grammar, [], 40 - first) == 0
    assert drafting.first_row(grammar, [], 40 - first - 1) == 0, "and once begun, it goes on"


class WaysOfTexts:
    """A grammar whose ways tell which text they were found after; ``known_after`` says what was known then."""

    def __init__(self) -> None:
        self.text: list[int] = []
        self.known_after: dict[tuple[int, ...], Way] = {}

    def way_to_end(self, draft_token_ids: Sequence[int], most: int, known: Way = None) -> Way:
        text = (*self.text, *draft_token_ids)
        self.known_after[text] = known
        return text[-1:]


def test_ways_that_were_found_after_wrong_drafts_are_forgotten() -> None:
    right = list(range(60))
    plain, drafting = WaysOfTexts(), WaysOfTexts()
    for grammar in (plain, drafting):
        closing, draw = ClosesInTime(), random.Random(0)
        while grammar.text != right:
            drafts = right[len(grammar.text) :][: draw.randint(0, 9)]
            num_right = draw.randint(0, len(drafts))
            drafts[num_right:] = [-1] * (len(drafts) - num_right)
            closing.first_row(grammar, drafts if grammar is drafting else [], 60 - len(grammar.text))  # type: ignore[arg-type]
            grammar.text = right[: len(grammar.text) + 1 + (num_right if grammar is drafting else 0)]
    assert any(-1 in text for text in drafting.known_after)
    of_right_texts = {text: known for text, known in drafting.known_after.items() if -1 not in text}
    assert of_right_texts == plain.known_after
    assert len(set(plain.known_after.values())) > 15


def test_what_a_request_says_decides_how_it_closes() -> None:
    assert isinstance(closing_of(None, is_json=True), ClosesInTime)
    assert isinstance(closing_of(None, is_json=False), NeverCloses)
    assert isinstance(closing_of(0, is_json=True), NeverCloses)
    assert isinstance(closing_of(5, is_json=True), LastTokensClose)
