from __future__ import annotations

import json
import random
from typing import Any, cast

import numpy as np
import pytest
from llguidance import LLMatcher

from octavo.control.structured_output.backends.llguidance import (
    MAX_GRAMMAR_BYTES,
    LLGuidanceBackend,
    LLGuidanceGrammar,
    check_grammar,
)
from octavo.control.structured_output.demands import MAX_DEMANDED
from octavo.words.errors import RequestError
from octavo.words.structured_outputs import StructuredOutputParams
from tests.control.structured_output.bytes_vocabulary import EOS, Bytes, allowed
from tests.fresh_python import run
from tests.refusals import documented_refusals, keywords_of, reason_of
from tests.schemas import schemas_of_huge_bounds

NESTED: dict[str, Any] = {"type": "string"}
for _ in range(70):
    NESTED = {"type": "object", "properties": {"a": NESTED}}


@pytest.fixture(scope="module")
def backend() -> LLGuidanceBackend:
    return LLGuidanceBackend(Bytes(), [EOS])


def accepts(backend: LLGuidanceBackend, text: str, **params: Any) -> bool:
    """Whether the whole text is one that the constraint lets end."""
    grammar = backend.compile(StructuredOutputParams(**params))
    return grammar.accept(list(text.encode())) and (grammar.is_complete or EOS in allowed(grammar, backend))


def test_a_mask_has_the_bits_of_what_may_come(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(regex="a?b"))
    assert allowed(grammar, backend) == {ord("a"), ord("b"), 257}
    assert grammar.accept([ord("a")])
    assert allowed(grammar, backend) == {ord("b")}
    assert not grammar.is_complete
    assert grammar.accept([ord("b")])
    assert grammar.is_complete and grammar.error is None


def test_a_token_that_is_not_allowed_is_an_error(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(choice=["yes", "no"]))
    assert not grammar.accept([ord("x")])
    assert grammar.error is not None and grammar.error.endswith("byte 'x' fails parse.")


@pytest.mark.parametrize("begin", ["", "stack backtrace:\n"])
def test_a_fault_of_the_library_is_told_without_its_calls(begin: str) -> None:
    calls = f"{begin}   0: core::panicking::panic_fmt\n             at /build/src/panicking.rs:75:14\n   1: main"

    class Faulty:
        def is_error(self) -> bool:
            return True

        def get_error(self) -> str:
            return f"panic: index out of bounds\n{calls}"

    grammar = LLGuidanceGrammar("regex", cast(LLMatcher, Faulty()), cast(Any, None), 1)
    assert grammar.error == "structured_outputs.regex cannot be used: panic: index out of bounds."


def test_a_copy_goes_its_own_way(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(choice=["ab", "cd"]))
    other = grammar.copy()
    assert grammar.accept([ord("a")]) and other.accept([ord("c")])
    assert (allowed(grammar, backend), allowed(other, backend)) == ({ord("b")}, {ord("d")})


def test_drafts_get_a_row_each_up_to_the_first_that_is_not_allowed(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(choice=["abcd"]))
    rows = np.zeros((4, backend.num_mask_words), dtype=np.int32)
    grammar.fill(rows, [ord("a"), ord("x"), ord("c")])
    bits = np.unpackbits(rows.view(np.uint8), axis=1, bitorder="little")[:, :259]
    assert [set(np.flatnonzero(row).tolist()) for row in bits[:2]] == [{ord("a")}, {ord("b")}]
    assert bits[2:].all()
    assert allowed(grammar, backend) == {ord("a")}, "the drafts are taken back"


def test_so13_choices_may_be_of_any_script_and_begin_alike(backend: LLGuidanceBackend) -> None:
    for text in ("🐈", "犬"):
        assert accepts(backend, text, choice=["🐈", "犬"])
    assert accepts(backend, "a", choice=["a", "ab"]) and accepts(backend, "ab", choice=["a", "ab"])
    assert not accepts(backend, "abc", choice=["a", "ab"])
    assert accepts(backend, 'say "\\n"', choice=['say "\\n"'])


@pytest.mark.parametrize(
    ("regex", "good", "bad"),
    [(r"\d{3}-\d{4}", "555-1234", "555-12345"), (r"^a+$", "aaa", "ab"), (r"(yes|no)!", "no!", "no")],
)
def test_a_regex_is_matched_from_end_to_end(backend: LLGuidanceBackend, regex: str, good: str, bad: str) -> None:
    assert accepts(backend, good, regex=regex)
    assert not accepts(backend, bad, regex=regex)


def test_grammars_are_lark_or_gbnf(backend: LLGuidanceBackend) -> None:
    assert accepts(backend, "1+2", grammar='start: NUM ("+" NUM)*\nNUM: /[0-9]+/')
    assert accepts(backend, "1+2", grammar='root ::= num ("+" num)*\nnum ::= [0-9]+')
    assert not accepts(backend, "1+", grammar='root ::= num ("+" num)*\nnum ::= [0-9]+')


def test_a_choice_may_be_of_thousands_of_texts_and_any_characters(backend: LLGuidanceBackend) -> None:
    many = [f"option {number:05d}" for number in range(5_000)]
    for text in ("option 00000", "option 04999"):
        assert accepts(backend, text, choice=many)
    assert not accepts(backend, "option 05000", choice=many)
    awkward = ["a|b", "a.b", "(a", "[x]", "\\d", "a\nb", "ü€", "a/b", 'c"d', "a", "ab", "# -&~"]
    assert all(accepts(backend, text, choice=awkward) for text in awkward)
    assert not any(accepts(backend, text, choice=awkward) for text in ("b", "axb", "x", "7", "aa"))


def test_a_structural_tag_binds_inside_its_tags_only(backend: LLGuidanceBackend) -> None:
    tag = {
        "structures": [{"begin": "<f>", "schema": {"type": "object"}, "end": "</f>"}],
        "triggers": ["<f>"],
    }
    assert accepts(backend, "free text", structural_tag=tag)
    assert accepts(backend, 'so <f>{"a":1}</f>', structural_tag=tag)
    assert not accepts(backend, "so <f>nothing</f>", structural_tag=tag)


def test_any_json_object(backend: LLGuidanceBackend) -> None:
    assert accepts(backend, '{"a": [1, {"b": null}]}', json_object=True)
    assert not accepts(backend, "[1]", json_object=True)


def test_so05_whitespace_is_bounded(backend: LLGuidanceBackend) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert accepts(backend, '{\n  "a": 1\n}', json=schema)
    assert not accepts(backend, '{          "a": 1}', json=schema)
    assert not accepts(backend, '{ "a": 1}', json=schema, disable_any_whitespace=True)
    assert accepts(backend, '{"a":1}', json=json.dumps(schema), disable_any_whitespace=True)
    assert not accepts(backend, '{\t"a": 1}', json=schema, whitespace_pattern=" ?")


def test_additional_properties_can_be_closed(backend: LLGuidanceBackend) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    assert accepts(backend, '{"a":1,"b":2}', json=schema)
    assert not accepts(backend, '{"a":1,"b":2}', json=schema, disable_additional_properties=True)


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"json": {"type": "array", "items": 5}}, "object or boolean"),
        ({"json": {"type": "bogus"}}, "bogus"),
        ({"json": {"type": "object", "properties": []}}, "properties"),
        ({"json": {"$ref": "#/nope"}}, "/nope"),
        ({"json": "7"}, "object schema"),
        ({"json": False}, "no value satisfies the schema false; give true or {}"),
        ({"json": "false"}, "no value satisfies the schema false"),
        ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "branches of a oneOf may overlap; use anyOf"),
        ({"json": {"multipleOf": 1_000_003}}, "multipleOf 1000003"),
        ({"json": {"type": "string", "format": "iri"}}, "iri"),
        ({"json": {"$ref": "http://127.0.0.1:1/schema"}}, "http://127.0.0.1:1/schema"),
        ({"json": "{"}, "line 1"),
        ({"json": NESTED}, "nested"),
        ({"json": {"enum": [f"{i:01000}" for i in range(MAX_GRAMMAR_BYTES // 1000)]}}, "bytes long"),
        ({"regex": "((("}, "unclosed"),
        ({"regex": r"a(?=b)"}, "look"),
        ({"grammar": "no rules here"}, "Expected ::= at line 1"),
        ({"structural_tag": {"structures": []}}, "triggers"),
        ({"structural_tag": {"structures": [], "triggers": []}}, "no structures"),
    ],
)
def test_so03_what_cannot_be_met_is_refused_with_its_reason(params: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=r"^structured_outputs\.") as caught:
        check_grammar(StructuredOutputParams(**params))
    assert named in reason_of(caught.value)
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("not", {"type": "string"}),
        ("if", {"type": "string"}),
        ("then", {"type": "string"}),
        ("else", {"type": "string"}),
        ("uniqueItems", True),
        ("contains", {"type": "string"}),
        ("minContains", 2),
        ("maxContains", 2),
        ("propertyNames", {"pattern": "^a"}),
        ("dependentRequired", {"a": ["b"]}),
        ("dependentSchemas", {"a": {"required": ["b"]}}),
        ("dependencies", {"a": ["b"]}),
        ("unevaluatedItems", False),
        ("unevaluatedProperties", False),
        ("$dynamicAnchor", "a"),
        ("$dynamicRef", "#a"),
        ("$recursiveRef", "#"),
    ],
)
def test_a_keyword_that_is_not_supported_is_named_wherever_it_stands(keyword: str, value: Any) -> None:
    says = {keyword: value}
    for schema in (
        says,
        {"type": "array", "items": {"anyOf": [{"type": "string"}, says]}},
        {"properties": {"a": says}},
    ):
        with pytest.raises(RequestError, match=r"^structured_outputs\.json cannot be used: ") as caught:
            check_grammar(StructuredOutputParams(json=schema))
        assert keywords_of(reason_of(caught.value)) == [keyword]
    assert f"`{keyword}`" in documented_refusals()


@pytest.mark.parametrize(
    ("params", "named"),
    [
        ({"grammar": "start: a\na: b\nb: a"}, "holds to it; give every rule an alternative that ends"),
        ({"grammar": 'root ::= "x" root'}, None),
        ({"grammar": 'start: start "a" | "b"'}, None),
        ({"grammar": "start: nowhere"}, 'unknown name: "nowhere"; grammars are written in Lark'),
        ({"grammar": 'start: "a" ('}, "Expected token ')'"),
        ({"grammar": "start: /a(/"}, "unclosed group; grammars"),
    ],
)
def test_a_refusal_is_one_line_that_says_what_to_do(
    backend: LLGuidanceBackend, params: dict[str, Any], named: str | None
) -> None:
    given = StructuredOutputParams(**params)
    if named is None:
        assert allowed(backend.compile(given), backend)
        return
    with pytest.raises(RequestError, match=f"^structured_outputs.{given.kind} cannot be used: ") as caught:
        backend.compile(given)
    assert named in str(caught.value) and "\n" not in str(caught.value)
    assert caught.value.param == "structured_outputs"


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "params",
    [
        {"regex": "a{1000000}"},
        {"regex": "x?(a{1000}){1000}"},
        {"choice": ["yes", "no" * 20_000]},
        {"json": {"type": "string", "pattern": "^a{1000000}$"}},
        {"json": {"type": "string", "minLength": 10**6}},
        {"json": json.dumps({"type": "array", "minItems": 10**9})},
        {"json": {}, "whitespace_pattern": " {1000000}"},
        {"grammar": 'start: "a"{1000000}'},
        {"grammar": 'root ::= ("ab"{1000}){1000}'},
        {"grammar": 'root ::= x{200}\nx ::= ("ab"){200}'},
        {
            "structural_tag": {
                "structures": [{"begin": "<f>", "schema": {"minProperties": 10**6}, "end": "</f>"}],
                "triggers": ["<f>"],
            }
        },
    ],
)
def test_so08_what_nobody_could_write_out_is_refused_before_anything_is_compiled(params: dict[str, Any]) -> None:
    with pytest.raises(
        RequestError, match=r"^structured_outputs.*(at most|is the most).*16,384|16,384.*; (use|write)"
    ) as caught:
        check_grammar(StructuredOutputParams(**params))
    assert caught.value.param == "structured_outputs" and "\n" not in str(caught.value)


@pytest.mark.parametrize("schema", [True, {}, "true", "{}", {"default": 7, "x-unknown": [1]}])
def test_a_schema_that_says_nothing_takes_any_json_value(backend: LLGuidanceBackend, schema: Any) -> None:
    for text in ("1", '"a"', "null", "[true]", '{"a": {"b": []}}'):
        assert accepts(backend, text, json=schema)
    assert not accepts(backend, "1 2", json=schema) and not accepts(backend, "", json=schema)


def test_bounds_are_whole_numbers_and_may_be_beyond_reach(backend: LLGuidanceBackend) -> None:
    short = {"type": "string", "minLength": 1.0, "maxLength": 2.0}
    assert [accepts(backend, text, json=short) for text in ('""', '"a"', '"abc"')] == [False, True, False]
    for schema in ({"type": "string", "maxLength": 2**53}, {"properties": {"maxItems": {"maxLength": 1e300}}}):
        assert accepts(backend, '"a"', json=schema) is ("type" in schema) or accepts(backend, "{}", json=schema)
    literal = {"enum": [{"maxLength": 2**53, "minItems": 1.5}]}
    assert accepts(backend, '{"maxLength":9007199254740992,"minItems":1.5}', json=literal)


MEASURED = """
import json, sys, time
from pathlib import Path
from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend, check_grammar
from octavo.words.errors import RequestError
from octavo.words.structured_outputs import StructuredOutputParams
from tests.control.structured_output.bytes_vocabulary import EOS, Bytes, allowed

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024

at_start = peak()
backend = LLGuidanceBackend(Bytes(), [EOS])
for params in json.loads(sys.argv[1]):
    began = time.monotonic()
    try:
        check_grammar(StructuredOutputParams(**params))
        grammar = backend.compile(StructuredOutputParams(**params))
        assert allowed(grammar, backend) and grammar.error is None
        told = "compiled"
    except RequestError as error:
        told = str(error)
    print(json.dumps([told, time.monotonic() - began, peak() - at_start]))
"""


def test_so08_huge_bounds_are_compiled_or_refused_soon_and_in_little_memory() -> None:
    asked = {name: {"json": schema} for name, schema in schemas_of_huge_bounds().items()}
    asked |= {"30 regexes": {"regex": "(" * 30 + "a" + "{1,1000})" * 30}, "dots": {"regex": ".*" * 300}}
    told = dict(zip(asked, map(json.loads, run(MEASURED, json.dumps(list(asked.values())))), strict=True))
    refused = {name for name, (what, _, _) in told.items() if what != "compiled"}
    assert refused == {"a text that must be long", "a list that must be long", "30 regexes"}
    assert all("16,384" in told[name][0] for name in refused)
    assert max(seconds for _, seconds, _ in told.values()) < 10, told  # five times what the case allows: no speed
    assert max(num_bytes for _, _, num_bytes in told.values()) < 200 << 20, told


def walk(grammar: LLGuidanceGrammar, backend: LLGuidanceBackend, text: str) -> None:
    """Byte by byte, with the mask before each, as tokens are sampled."""
    row = np.zeros((1, backend.num_mask_words), dtype=np.int32)
    for byte in text.encode():
        grammar.fill(row, [])
        assert row[0, byte // 32] >> byte % 32 & 1
        assert grammar.accept([byte]), grammar.error


@pytest.mark.parametrize("character", ["a", "\\n", "é"])
@pytest.mark.parametrize(("least", "most", "length"), [(MAX_DEMANDED,) * 3, (0, 65_535, 18_000)])
def test_a_long_text_whose_characters_are_counted_ends_properly(
    backend: LLGuidanceBackend, character: str, least: int, most: int, length: int
) -> None:
    """An escape takes more of the matcher's states than any other character."""
    schema = {"type": "string", "minLength": least, "maxLength": most}
    grammar = backend.compile(StructuredOutputParams(json=schema))
    walk(grammar, backend, '"' + character * (length - 1))
    assert (ord('"') in allowed(grammar, backend)) == (length - 1 >= least)
    walk(grammar, backend, character)
    if length == most:
        assert allowed(grammar, backend) == {ord('"')}
    walk(grammar, backend, '"')
    assert grammar.is_complete and grammar.error is None


def test_a_counted_text_of_one_range_of_characters_may_have_65535(backend: LLGuidanceBackend) -> None:
    grammar = backend.compile(StructuredOutputParams(regex="[a-z]{0,65535}"))
    walk(grammar, backend, "a" * 65_534)
    assert EOS in allowed(grammar, backend) and ord("a") in allowed(grammar, backend)
    walk(grammar, backend, "z")
    assert grammar.is_complete and grammar.error is None


def test_exactly_one_constraint_is_taken() -> None:
    for params in ({}, {"json": {}, "regex": "a"}, {"json_object": False}):
        with pytest.raises(RequestError, match="exactly one"):
            StructuredOutputParams(**params)


@pytest.mark.parametrize("params", [{"choice": []}, {"choice": [1]}, {"choice": [""]}, {"regex": ""}, {"grammar": 3}])
def test_a_wrong_value_names_its_field(params: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputParams(**params)
    assert caught.value.param == next(iter(params))


@pytest.mark.parametrize(
    ("params", "named"),
    [({"regex": "[ab]*a[ab]{30}c"}, "smaller repetitions"), ({"grammar": 'start: "a" start | ""'}, "list: list item")],
)
def test_a_constraint_that_grows_too_large_while_it_is_used_says_what_to_do(
    backend: LLGuidanceBackend, params: dict[str, Any], named: str
) -> None:
    grammar = backend.compile(StructuredOutputParams(**params))
    rng = random.Random(0)
    letters = "ab" if "regex" in params else "a"
    for _ in range(400):
        grammar.accept([ord(rng.choice(letters)) for _ in range(100)])
    assert grammar.error is not None and named in grammar.error and "\n" not in grammar.error
