"""Lark rules of a Python list of calls whose arguments hold to the schemas of their tools.

Python's literals are no JSON (True, None, fewer escapes), so a schema is translated, as far as Python's own words say
the same: plain strings, numbers, booleans, null, enum, const, lists, objects and any of these. What goes further has no
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from octavo.server.tool_parsers.open_rules import ANY, SpecialTokens, in_regex, marker, one_of
from octavo.server.tool_parsers.tool_format import Tool, json_rule, parameters, quoted

_REMARKS = frozenset({"title", "description", "default", "examples", "deprecated", "$comment", "$schema"})
_LITERALS = r"""
any: STRING | NUMBER | "True" | "False" | "None" | "[" (any (", " any)*)? "]" | "{" (pair (", " pair)*)? "}"
pair: STRING ": " any
keyword: NAME "=" any
NAME: /[A-Za-z_][A-Za-z0-9_]*/
NUMBER: /-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?/
STRING: /"([^"\\\n\r]|\\["'\\nrt])*"|'([^'\\\n\r]|\\["'\\nrt])*'/
"""
_PLAIN = {"string": "STRING", "boolean": '("True" | "False")', "null": '"None"'}


class _NoRules(Exception):
    """The schema says more than the rules can."""


def pythonic_rules(tools: Sequence[Tool], tags: tuple[str, str], special: SpecialTokens) -> str | None:
    """Any text, or calls alone, between ``tags`` where these are special tokens.

    None where a name or a schema has no rules.
    """
    try:
        rules = _Rules()
        arguments = [rules.arguments(parameters(tool)) for tool in tools]
    except _NoRules:
        return None
    if not all(_is_dotted_name(tool["name"]) for tool in tools):
        return None
    opening, closing = (f"({marker(tag, special)})? " if tag in special else "" for tag in tags)
    begins = [f"FIRST_{index} {each}" for index, each in enumerate(arguments)]
    others = [f"{quoted(tool['name'] + '(')} {each}" for tool, each in zip(tools, arguments, strict=True)]
    firsts = (f"FIRST_{i}: /\\s*\\[\\s*{in_regex(tool['name'])}\\(/\n" for i, tool in enumerate(tools))
    spelt = "|".join(map(in_regex, tags))
    return (
        f'start: TEXT | {opening}first (", " other)* "]" {closing}\n'
        + f"TEXT: /{ANY}/ & ~/\\s*\\[\\s*[A-Za-z_][A-Za-z0-9_.]*\\({ANY}/ & ~/{ANY}({spelt}){ANY}/"
        + one_of("\nfirst", (f'{each} ")"' for each in begins))
        + one_of("other", (f'{each} ")"' for each in others))
        + "".join(firsts)
        + _LITERALS
        + rules.text
    )


class _Rules:
    """Expressions for schemas; ``text``: rules that they name."""

    def __init__(self) -> None:
        self.text = ""
        self._num_rules = 0

    def arguments(self, schema: Mapping[str, Any]) -> str:
        """Keyword arguments."""
        if not schema.get("properties") and schema.get("additionalProperties") is not False:
            return '(keyword (", " keyword)*)?'
        return self._members(schema, lambda name: f"{name}=", str.isidentifier)

    def value(self, schema: Any) -> str:
        """A literal."""
        if schema is False:
            raise _NoRules
        said = set() if schema is True else schema.keys() - _REMARKS
        if not said:
            return "any"
        if said in ({"enum"}, {"enum", "type"}):
            return "(" + " | ".join(quoted(_literal(each)) for each in schema["enum"]) + ")"
        if said == {"const"}:
            return quoted(_literal(schema["const"]))
        if said == {"anyOf"}:
            return "(" + " | ".join(map(self.value, schema["anyOf"])) + ")"
        return self._of_type(schema, said)

    def _of_type(self, schema: Mapping[str, Any], said: set[str]) -> str:
        kind = schema.get("type")
        if isinstance(kind, list):
            return "(" + " | ".join(self.value({**schema, "type": each}) for each in kind) + ")"
        if kind in ("integer", "number"):
            return self._rule(json_rule({key: schema[key] for key in said}))
        if kind in _PLAIN and said == {"type"}:
            return _PLAIN[kind]
        if kind == "array" and said <= {"type", "items"}:
            item = self.value(schema.get("items", True))
            return f'"[" ({item} (", " {item})*)? "]"'
        if kind == "object" and said == {"type"}:
            return '"{" (pair (", " pair)*)? "}"'
        if kind == "object":
            return '"{" ' + self._members(schema, lambda name: f"{_literal(name)}: ", lambda name: True) + ' "}"'
        raise _NoRules

    def _members(
        self, schema: Mapping[str, Any], begin: Callable[[str], str], can_be_said: Callable[[str], bool]
    ) -> str:
        """The properties in their order, the optional ones with what parts them from others or not."""
        properties, required = schema.get("properties") or {}, set(schema.get("required", ()))
        said = schema.keys() - _REMARKS - {"type", "properties", "required", "additionalProperties"}
        if said or not required <= properties.keys() or not all(map(can_be_said, properties)):
            raise _NoRules
        first = rest = ""
        for name, inner in reversed(properties.items()):
            member = self._rule(f"{quoted(begin(name))} {self.value(inner)}")
            first = f"{member} {rest}" if name in required else f"({member} {rest}{' | ' + first if first else ''})"
            first += "?" if name not in required and not required & _after(properties, name) else ""
            rest = f'", " {member} {rest}' if name in required else f'(", " {member})? {rest}'
        return first

    def _rule(self, body: str) -> str:
        name = f"rule_{self._num_rules}"
        self._num_rules += 1
        self.text += f"{name}: {body}\n"
        return name


def _after(properties: Mapping[str, Any], name: str) -> set[str]:
    names = list(properties)
    return set(names[names.index(name) :])


def _literal(value: Any) -> str:
    """JSON's value as Python writes it, texts in double quotes."""
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    return repr(value)


def _is_dotted_name(name: str) -> bool:
    return all(map(str.isidentifier, name.split(".")))
