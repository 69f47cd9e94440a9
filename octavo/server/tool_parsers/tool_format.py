"""How one family of models writes calls of tools: what a format must provide.

To add one: a file with an object of this protocol and an entry in ``table.py``; docs/tools.md says more.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from octavo.server.output_events import OutputParser

Tool = Mapping[str, Any]
"""The ``function`` part of an OpenAI tool: name, description, parameters (a JSON schema)."""


class ToolFormat(Protocol):
    """One way to write calls."""

    name: str
    template_marks: Sequence[str]
    """Texts in a chat template that tell that its model writes this format; all of them are there."""
    needs_special_tokens: bool
    """Whether the markup is special tokens, which must then be part of the text."""
    reads_thoughts: bool
    """Whether its parser reads every answer of the model, thoughts as well, with tools or without."""

    def parser(self, *, forced: bool = False) -> OutputParser:
        """A parser for one answer; ``forced``: for one that ``grammar`` held."""

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> str:
        """Lark rules of an answer that is one call, or ``several``, and nothing else.

        Rules cannot spell special tokens: where the markup is such, ``bare_calls`` are written instead.
        """

    def open_grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
        """Lark rules of any text in which a call, once it begins, holds to its tool's schema (``open_rules.py``).

        ``special``: the ids of the vocabulary's special tokens, by their text. None where no rules can say that.
        """


def bare_calls(tools: Sequence[Tool], *, several: bool, arguments_key: str = "arguments") -> str:
    """Rules of calls as JSON objects alone, several parted by semicolons; BareJsonParser reads them."""
    more = ' ("; " object)*' if several else ""
    return f"start: object{more}\nobject: {json_rule(any_call(tools, arguments_key=arguments_key))}\n"


def any_call(tools: Sequence[Tool], name_key: str = "name", arguments_key: str = "arguments") -> dict[str, Any]:
    """The JSON schema of a call of any of ``tools`` as an object."""
    return {"anyOf": [call_schema(tool, name_key, arguments_key) for tool in tools]}


def call_schema(tool: Tool, name_key: str, arguments_key: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name_key: {"const": tool["name"]}, arguments_key: parameters(tool)},
        "required": [name_key, arguments_key],
        "additionalProperties": False,
    }


def parameters(tool: Tool) -> dict[str, Any]:
    """The schema of a tool's arguments; a tool without parameters takes an empty object."""
    schema = tool.get("parameters")
    return dict(schema) if schema else {"type": "object", "properties": {}, "additionalProperties": False}


def json_rule(schema: Mapping[str, Any]) -> str:
    """A schema inside Lark rules."""
    return "%json " + json.dumps({**schema, "x-guidance": {"whitespace_pattern": "[ \\n]{1,2}"}})


def quoted(text: str) -> str:
    """A text inside Lark rules."""
    return json.dumps(text, ensure_ascii=False)
