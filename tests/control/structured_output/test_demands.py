"""What demands more text than there may be is found by reading, before anything is compiled."""

from __future__ import annotations

import re
from typing import Any

import pytest

from octavo.control.structured_output.demands import (
    MAX_DEMANDED,
    MOST_PARTS,
    check_lark,
    check_regex,
    check_schema,
    check_texts,
)
from octavo.words.errors import UnsupportedError


@pytest.mark.parametrize(
    ("regex", "shortest", "most"),
    [
        (r"\d{3}-\d{4}?", 8, 8),
        ("abc", 3, 3),
        ("abc{3}", 5, 5),
        ("^ab$", 2, 2),
        ("(?:ab|c){4}", 4, 5),
        ("(?P<name>ab){3,}", 6, 6),
        ("(?i)a{,20000}b+?c*", 1, 2),
        (r"[^]{5}]{2}\p{L}{2}\x{41}\{5\}", 8, 8),
        ("x(a{7})?", 1, 8),
        ("a{0,1000000}", 0, 1),
        (r"(?:\d{1,3},){0,10000}", 0, 2),
        ("a|", 0, 1),
        ("", 0, 0),
        ("(((", 0, 0),
        (")a", 1, 1),
    ],
)
def test_a_regex_demands_its_shortest_texts(regex: str, shortest: int, most: int) -> None:
    demand = check_regex(regex)
    assert (demand.shortest, demand.most) == (shortest, most)


@pytest.mark.parametrize(
    ("regex", "number"),
    [
        ("a{1000000}", "1,000,000"),
        ("(a{1000}){1000}", "1,000,000"),
        ("x?[ab]{20000,}", "20,001"),
        ("no|a{99999}", "99,999"),
        ("a{9000}b{9000}", "18,000"),
        ("(ab{200}){200}", "40,200"),
        ("(?:(?:ab{10}){100}c){100}", "110,100"),
        (f"a{{{'9' * 5000}}}", "1,000,000,000 and more"),
        ("a" * 20_000, "20,000"),
    ],
)
def test_a_regex_that_demands_too_much_is_told_by_its_number(regex: str, number: str) -> None:
    with pytest.raises(UnsupportedError, match=f"it demands {number} characters.*at most 16,384; use smaller"):
        check_regex(regex)


@pytest.mark.parametrize("regex", ["(a{1,1000}){1,1000}", "(?:(?:b{0,100}){0,100}|c){0,9}"])
def test_repetitions_that_are_nothing_but_repetitions_are_multiplied(regex: str) -> None:
    with pytest.raises(UnsupportedError, match=r"inside each other count to \d+,\d+.*write one repetition"):
        check_regex(regex)


@pytest.mark.parametrize("regex", ["a" * MAX_DEMANDED, f"a{{{MAX_DEMANDED}}}", "(a{128}){128}", "(a[bc]){8192}"])
def test_what_is_just_possible_is_taken(regex: str) -> None:
    assert check_regex(regex).shortest == MAX_DEMANDED


@pytest.mark.timeout(60)
@pytest.mark.parametrize("text", ["(", "[", "\\p{", "(?", "a|", '"', "/", "a:b\n"])
def test_a_long_text_of_any_kind_is_read_in_a_time_that_grows_with_its_length(text: str) -> None:
    for check in (check_regex, check_lark):
        try:
            check(text * (150_000 // len(text)))
        except UnsupportedError as error:
            assert f"more than {MOST_PARTS:,} parts" in str(error) or "it demands" in str(error)


@pytest.mark.parametrize(
    ("grammar", "number"),
    [
        ('start: "a"{1000000}', "1,000,000"),
        ('start: A{1000}\nA: "a"{1000}', "1,000,000"),
        ("start: A\nA: /a{1000000}/", "1,000,000"),
        ('start: b~1000\nb: c~1000..2000\nc: "x"', "1,000,000"),
        ('start: "yes" | b\nb: "x"? c{1000}\nc: "y"{1000}', "1,000,001"),
        ('start: "a" [b]\n!b: c\nc[lazy]: "xy"{9999}', "19,998"),
        ('start: "a" b\nb: %json {"%json {": [],\n "minItems": 20000} "c"', "20,000"),
        ('start: "a"\n     | /b\\/{20000}/i', "20,001"),
    ],
)
def test_a_grammar_demands_what_its_rules_do(grammar: str, number: str) -> None:
    with pytest.raises(UnsupportedError, match=f"it demands {number} characters"):
        check_lark(grammar)


@pytest.mark.parametrize(
    "grammar",
    [
        'start: a\na: a{100} | "x"',
        'start: start "a" | "b"',
        '// "a"{1000000}\nstart: "b{99999}"',
        'start: "b"{0,1000000}',
        "start: /a{3}/ nowhere{99999}",
        'start: %json { "type": "string", "maxLength": 99999 }',
        f'start: %json {{ "enum": {list(range(100_000))} }}',
    ],
)
def test_rules_that_name_themselves_and_texts_that_look_like_repetitions_demand_little(grammar: str) -> None:
    check_lark(grammar)


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": 10**6},
        {"type": "array", "minItems": 200, "items": {"type": "array", "minItems": 200}},
        {"minItems": 100, "items": {"anyOf": [{"type": "null"}, {"pattern": "^[a-z]{200}$"}]}},
        {"properties": {"title": {"minProperties": 10**9}}},
        {"$defs": {"a": {"pattern": "a{20000}"}}, "$ref": "#/$defs/a"},
        {"patternProperties": {"a{20000}": {}}},
        {"enum": [1, {"a": ["x" * 20_000]}]},
        {"const": {"x" * 20_000: 1}},
    ],
)
def test_a_schema_demands_what_its_parts_do_as_often_as_they_come(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="it demands"):
        check_schema(schema)


@pytest.mark.parametrize(
    "schema",
    [
        {"minLength": MAX_DEMANDED, "maxLength": 10**9},
        {"maxItems": 10**9, "items": {"maxLength": 10**9}},
        {"properties": {"minLength": {"type": "integer"}, "items": {"minItems": 100}}, "minProperties": 1000},
        {"default": {"minLength": 10**9}, "examples": ["x" * 20_000], "enum": [{"minLength": 10**9}]},
        {"minLength": True, "minItems": "many", "pattern": 7, "properties": [], "patternProperties": []},
        True,
    ],
)
def test_most_bounds_and_what_only_looks_like_a_demand_are_taken(schema: Any) -> None:
    check_schema(schema)


def test_each_of_the_texts_of_a_choice_must_be_possible() -> None:
    check_texts([])
    check_texts(["yes", "n" * MAX_DEMANDED])
    with pytest.raises(UnsupportedError, match="it demands 16,385"):
        check_texts(["yes", "n" * (MAX_DEMANDED + 1)])


@pytest.mark.parametrize("step", [7, 0.05, 3600, 10_000, 10**9, 1e-7, 1.0, 0.25, 2.5, 0])
def test_a_multiple_of_few_remainders_or_of_a_power_of_ten_is_taken(step: float) -> None:
    check_schema({"items": {"multipleOf": step}})


@pytest.mark.parametrize("step", [1_000_003, 86_400, 123.457, 3e20])
def test_a_multiple_of_many_remainders_is_refused_by_name(step: float) -> None:
    with pytest.raises(UnsupportedError, match=re.escape(f"multipleOf {step} has too many remainders")):
        check_schema({"items": {"multipleOf": step}})
