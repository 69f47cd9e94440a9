"""Lark rules of free text in which a call holds to its tool's schema once it begins: pieces that formats share.

A marker that is a special token stands as that token and ends the text before it. One that is text ends it as soon as
it is there (a lazy rule). Either way text cannot hold a marker that is not obeyed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from octavo.server.tool_parsers.tool_format import Tool, call_schema, json_rule, parameters, quoted

SpecialTokens = Mapping[str, int]
"""The ids of a vocabulary's special tokens, by their text."""

ANY = r"(.|\n)*"


def marker(text: str, special: SpecialTokens) -> str:
    """A marker inside a rule."""
    return f"<[{special[text]}]>" if text in special else quoted(text)


def text_without(name: str, markers: Iterable[str]) -> str:
    """The terminal ``name``: any text that spells none of the markers."""
    spelt = "|".join(map(in_regex, markers))
    return f"{name}: /{ANY}/ & ~/{ANY}({spelt}){ANY}/\n"


def text_up_to(name: str, text: str, mark: str, special: SpecialTokens) -> str:
    """The rule ``name``: the terminal ``text``, then the marker."""
    return f"{name}: {text}? {marker(mark, special)}\n" if mark in special else f"{name}[lazy]: {text} {quoted(mark)}\n"


def in_regex(text: str) -> str:
    """Text inside a regex between slashes."""
    return re.escape(text).replace("/", r"\/")


def arguments_rules(tools: Sequence[Tool]) -> str:
    """A rule ``arguments_N`` for each tool."""
    return "".join(f"arguments_{index}: {json_rule(parameters(tool))}\n" for index, tool in enumerate(tools))


def object_rules(tools: Sequence[Tool]) -> str:
    """The rule ``object``: a call of any of the tools as a JSON object."""
    schemas = [call_schema(tool, "name", "arguments") for tool in tools]
    return f"object: {json_rule({'anyOf': schemas})}\n"


def one_of(name: str, alternatives: Iterable[str]) -> str:
    """The rule ``name``: any of the alternatives."""
    return f"{name}: {' | '.join(alternatives)}\n"
