"""How much text a constraint demands: what no answer could write out is found before anything is compiled.

A matcher keeps a state for each character of a repetition that counts, and its states are limited: a demand beyond that
limit would end its own request with an error, after seconds of work on text that is forced.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from octavo.words.errors import UnsupportedError

MAX_DEMANDED = 16_384
"""Characters, items or properties that may have to come, and what counts that stand inside each other may come to."""

MOST_COUNTED = 10**9
MOST_PARTS = 100_000
"""Of a regular expression or a grammar: what is longer takes too long to read."""

PASSES = 8
"""Over the rules of a grammar: a rule that demands too much does so through few others, or is too deep to be found."""

NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose values are schemas by names of the user's."""

NO_SCHEMAS = frozenset({"const", "enum", "default", "example", "examples"})
"""Keywords whose values are no schemas, whatever they look like."""

LEAST = ("minLength", "minItems", "minProperties")
MOST = ("maxLength", "maxItems", "maxProperties")
MOST_MULTIPLE = 10_000
"""A matcher keeps a state for each remainder; those of powers of ten are the last digits."""


@dataclass(frozen=True, slots=True)
class Demand:
    """In characters: ``shortest`` of all texts, and ``most`` that one of the alternatives demands.

    ``counted``: how often an expression that is nothing but a repetition repeats at most, those inside it multiplied.
    """

    shortest: int = 0
    most: int = 0
    counted: int = 1

    def then(self, other: Demand) -> Demand:
        """Both, one after the other."""
        both = self.shortest + other.shortest
        most = both + max(self.most - self.shortest, other.most - other.shortest)
        return Demand(min(both, MOST_COUNTED), min(most, MOST_COUNTED))

    def either(self, other: Demand) -> Demand:
        """One of both."""
        counted = max(self.counted, other.counted)
        return Demand(min(self.shortest, other.shortest), max(self.most, other.most), counted)

    def times(self, least: int, most: int | None) -> Demand:
        """So often, or without end."""
        shortest = min(self.shortest * least, MOST_COUNTED)
        counted = min(self.counted * (most or 1), MOST_COUNTED)
        if self.counted > 1 and most and most > 1 and counted > MAX_DEMANDED >= shortest:
            raise UnsupportedError(
                f"repetitions directly inside each other count to {counted:,}, and {MAX_DEMANDED:,} is the most; "
                "write one repetition in their place"
            )
        return Demand(shortest, min(shortest - self.shortest * (least > 0) + self.most, MOST_COUNTED), counted)


def check_regex(regex: str) -> Demand:
    """What a regular expression demands. UnsupportedError where that is too much."""
    return _possible(_demand_of(_regex_tokens(regex)))


def check_texts(texts: Iterable[str]) -> None:
    """Of texts to choose from each must be possible."""
    _possible(Demand(most=max(map(len, texts), default=0)))


def check_lark(grammar: str) -> None:
    """Each of the rules of a Lark grammar must be possible, with what the others demand at least."""
    rules = _lark_rules(_without_schemas(grammar))
    shortest = dict.fromkeys(rules, 0)
    for _ in range(PASSES):
        before = dict(shortest)
        for name in reversed(rules):
            shortest[name] = _possible(_demand_of(_with_rules(rules[name], shortest))).shortest
        if shortest == before:
            return


def check_schema(schema: Any, times: int = 1) -> None:
    """Each part of a JSON schema must be possible as often as the arrays around it demand it."""
    if isinstance(schema, list):
        for each in schema:
            check_schema(each, times)
    if isinstance(schema, dict):
        _check_own(schema, times)
        for key, value in schema.items():
            if key in NAMED and isinstance(value, dict):
                check_schema(list(value.values()), times)
            elif key not in NO_SCHEMAS:
                check_schema(value, times * _num_items(schema) if key == "items" else times)


def _check_own(schema: Mapping[str, Any], times: int) -> None:
    """What a schema says itself, without those inside it."""
    for key in LEAST:
        if _is_count(schema.get(key)):
            _possible(Demand(most=times * int(schema[key])))
    if isinstance(schema.get("pattern"), str):
        _possible(Demand(most=times * check_regex(schema["pattern"]).most))
    if isinstance(schema.get("patternProperties"), dict):
        for pattern in schema["patternProperties"]:
            check_regex(pattern)
    check_texts(_texts_in([schema.get("const"), schema.get("enum")]))
    _check_multiple(schema.get("multipleOf"))


def _check_multiple(step: Any) -> None:
    if not _is_count(step):
        return
    digits = f"{Decimal(str(int(step) if step == int(step) else step)):f}".replace(".", "").lstrip("0")
    if digits.rstrip("0") != "1" and int(digits or "0") > MOST_MULTIPLE:
        raise UnsupportedError(
            f"multipleOf {step} has too many remainders; use one of at most {MOST_MULTIPLE:,}, or a power of ten"
        )


def _num_items(schema: Mapping[str, Any]) -> int:
    count = schema.get("minItems", 1)
    return max(int(count), 1) if _is_count(count) else 1


def _is_count(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < float("inf")


def _texts_in(value: Any) -> Iterator[str]:
    """All texts of a JSON value."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, str):
            yield each
        elif isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, list):
            waiting += each


def _possible(demand: Demand) -> Demand:
    if demand.most > MAX_DEMANDED:
        number = f"{demand.most:,}" if demand.most < MOST_COUNTED else f"{MOST_COUNTED:,} and more"
        raise UnsupportedError(
            f"it demands {number} characters or items in a row, and an answer has at most {MAX_DEMANDED:,}; use "
            "smaller repetitions, bounds or texts"
        )
    return demand


# What the expressions of a regular expression and those of a grammar have in common: groups, alternatives, repetitions.

Repeat = tuple[int, int | None]
"""Least and most; None for no end."""

Token = Demand | Repeat | Literal["(", ")", "|"]


def _demand_of(tokens: Iterable[Token]) -> Demand:
    group = _Group()
    around: list[_Group] = []
    for token in tokens:
        if isinstance(token, Demand):
            group.add(token)
        elif isinstance(token, tuple):
            group.repeat(*token)
        elif token == "|":
            group.end_alternative()
        elif token == "(":
            around.append(group)
            group = _Group()
        elif around:
            inner, group = group, around.pop()
            group.add(inner.demand())
    return group.demand()


class _Group:
    """The alternatives of a group as they are read: those before, the parts of the present one, and its last part."""

    def __init__(self) -> None:
        self._alternatives: Demand | None = None
        self._before: Demand | None = None
        self._last: Demand | None = None

    def add(self, part: Demand) -> None:
        if self._last is not None:
            self._before = self._last if self._before is None else self._before.then(self._last)
        self._last = part

    def repeat(self, least: int, most: int | None) -> None:
        if self._last is not None:
            self._last = self._last.times(least, most)

    def end_alternative(self) -> None:
        last = self._last or Demand()
        read = last if self._before is None else self._before.then(last)
        self._alternatives = read if self._alternatives is None else self._alternatives.either(read)
        self._before = self._last = None

    def demand(self) -> Demand:
        self.end_alternative()
        return self._alternatives or Demand()


# A run of plain characters is one token, but for its last, which a repetition may follow. No part looks back.
_COUNT = r"\{(?P<least>\d*)(?P<to>,?)(?P<most>\d*)\}|(?P<sign>[*+?])"
_REGEX_TOKEN = re.compile(
    rf"(?P<run>[\w ]+(?=[\w ]))|(?P<open>\((?:\?(?:P?<\w*+>|[\w-]*+:?))?)|(?P<close>\))|(?P<or>\|)|(?:{_COUNT})\??"
    r"|(?:\\(?:[pPxuU]\{[^}]*+\}?|.)|\[\^?\]?(?:\\.|[^\]\\])*+\]?|.)",
    re.DOTALL,
)
_LARK_TOKEN = re.compile(
    rf'\s++|//[^\n]*+|(?P<text>"(?:\\.|[^"\\\n])*+"?)|(?P<regex>/(?:\\.|[^/\\\n])*+/?[a-z]*+)'
    rf"|(?P<rule>[!?]?[A-Za-z_]\w*+(?:\[[^\]\n]*+\])?\s*+(?::(?!:))|[A-Za-z_]\w*+)"
    rf"|(?P<open>[(\[])|(?P<close>[)\]])|(?P<or>\|)|{_COUNT}|~\s*(?P<from>\d+)(?:\.\.(?P<upto>\d+))?|.",
    re.DOTALL,
)


def _parts(kinds: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    for number, found in enumerate(kinds.finditer(text)):
        if number == MOST_PARTS:
            raise UnsupportedError(
                f"it has more than {MOST_PARTS:,} parts; use fewer alternatives, or a choice of texts"
            )
        yield found


def _regex_tokens(regex: str) -> Iterator[Token]:
    for found in _parts(_REGEX_TOKEN, regex):
        mark = _mark(found) or _repeat(found)
        yield mark or (_run(len(found["run"])) if found["run"] else _run(int(found[0] not in "^$")))


def _run(length: int) -> Demand:
    return Demand(length, length)


def _mark(found: re.Match[str]) -> Literal["(", ")", "|"] | None:
    return "(" if found["open"] else ")" if found["close"] else "|" if found["or"] else None


def _repeat(found: re.Match[str]) -> Repeat | None:
    sign = found["sign"]
    if sign:
        return int(sign == "+"), 1 if sign == "?" else None
    if found["least"] or found["most"]:
        least = _number(found["least"])
        return least, (_number(found["most"]) if found["most"] else None) if found["to"] else least
    return None


def _number(digits: str) -> int:
    significant = digits.lstrip("0")
    return min(int(significant[:10] or 0), MOST_COUNTED)


_SCHEMA, _JSON = re.compile(r"%json\s*(?=\{)"), json.JSONDecoder()


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str


LarkToken = Token | _Rule


def _without_schemas(grammar: str) -> str:
    """The grammar without the JSON schemas in it, each of which must be possible."""
    kept, end = "", 0
    for found in _SCHEMA.finditer(grammar):
        if found.start() >= end:
            kept += grammar[end : found.start()]
            schema, end = _JSON.raw_decode(grammar, found.end())
            check_schema(schema)
    return kept + grammar[end:]


def _lark_rules(grammar: str) -> dict[str, list[LarkToken]]:
    """The expression of each rule; what stands before the first is left out."""
    rules: dict[str, list[LarkToken]] = {}
    tokens: list[LarkToken] = []
    for found in _parts(_LARK_TOKEN, grammar):
        rule = found["rule"]
        if rule and rule.endswith(":"):
            tokens = rules.setdefault(rule.lstrip("!?").split("[")[0].rstrip(":").strip(), [])
        else:
            tokens += _lark_tokens(found)
    return rules


def _lark_tokens(found: re.Match[str]) -> list[LarkToken]:
    if found["rule"]:
        return [_Rule(found["rule"])]
    if found["text"]:
        return [_run(len(found["text"]) - 2)]
    if found["regex"]:
        return [check_regex(found["regex"][1:].rpartition("/")[0])]
    if found["from"]:
        return [(_number(found["from"]), _number(found["upto"] or found["from"]))]
    if found["close"] == "]":
        return [")", (0, 1)]
    mark = _mark(found) or _repeat(found)
    return [mark] if mark else []


def _with_rules(tokens: Iterable[LarkToken], shortest: Mapping[str, int]) -> Iterator[Token]:
    for token in tokens:
        yield _run(shortest.get(token.name, 0)) if isinstance(token, _Rule) else token
