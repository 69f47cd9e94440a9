"""Calls as a Python list of function calls and nothing else: [weather(city="Rome"), now()].

Templates tell Llama 3.2, Llama 4 and Gemma 3 to write so. JSON's words (true, false, null) are read too.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from typing import Any

from octavo.server.output_events import CallArguments, CallBegins, Content, Event
from octavo.server.tool_parsers.pythonic_rules import pythonic_rules
from octavo.server.tool_parsers.special_token_format import SpecialTokenFormat
from octavo.server.tool_parsers.tool_format import Tool

MAX_CHARACTERS = 64 << 10
"""A longer answer is content: Python's own parser is used, and it should not be given books."""
JSON_WORDS = {"true": True, "false": False, "null": None}
PYTHON_TAGS = ("<|python_start|>", "<|python_end|>", "<|python_tag|>")


class PythonicParser:
    """Waits for the end of an answer that begins like a list of calls; any other streams as content."""

    def __init__(self) -> None:
        self._held: list[str] = []
        self._num_held = 0
        self._is_content = False

    def feed(self, text: str) -> list[Event]:
        if self._is_content:
            return [Content(text)] if text else []
        self._held.append(text)
        self._num_held += len(text)
        begin = "".join(self._held[:64])[:64].lstrip()
        could_be_calls = not begin or begin[0] == "[" or any(_agree(begin, tag) for tag in PYTHON_TAGS)
        if could_be_calls and self._num_held <= MAX_CHARACTERS:
            return []
        self._is_content = True
        return self._release()

    def end(self) -> list[Event]:
        text = "".join(self._held)
        for tag in PYTHON_TAGS:
            text = text.replace(tag, "")
        calls = _calls(text.strip())
        if calls is None:
            return self._release()
        events: list[Event] = []
        for name, arguments in calls:
            events += [CallBegins(name), CallArguments(json.dumps(arguments, ensure_ascii=False))]
        return events

    def _release(self) -> list[Event]:
        text, self._held = "".join(self._held), []
        return [Content(text)] if text else []


def _agree(text: str, tag: str) -> bool:
    return text.startswith(tag) or tag.startswith(text)


def _calls(text: str) -> list[tuple[str, dict[str, Any]]] | None:
    """The calls that a Python list of calls with plain values spells, None for any other text."""
    try:
        tree = ast.parse(text, mode="eval").body
        if not isinstance(tree, ast.List) or not tree.elts:
            return None
        return [_call(each) for each in tree.elts]
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args or any(keyword.arg is None for keyword in node.keywords):
        raise ValueError("not a call by names")
    arguments = {str(keyword.arg): ast.literal_eval(_PythonWords().visit(keyword.value)) for keyword in node.keywords}
    json.dumps(arguments)
    return ast.unparse(node.func), arguments


class _PythonWords(ast.NodeTransformer):
    """JSON's words become Python's."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(JSON_WORDS[node.id]) if node.id in JSON_WORDS else node


def _open_rules(tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
    return pythonic_rules(tools, PYTHON_TAGS[:2], special)


PYTHONIC = SpecialTokenFormat("pythonic", ("[func_name1(param",), PythonicParser, _open_rules)
