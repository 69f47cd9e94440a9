"""An answer that is JSON objects and nothing else, as Llama 3 writes calls: {"name": ..., "parameters": {...}}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.server.output_events import Content, Event, OutputParser
from octavo.server.tool_parsers.call_object import BLANK, CallObject
from octavo.server.tool_parsers.open_rules import ANY, arguments_rules, in_regex, marker, one_of
from octavo.server.tool_parsers.tool_format import Tool, bare_calls, quoted

PYTHON_TAG = "<|python_tag|>"
MAX_BEFORE = 64
"""Characters before a call, blanks and the tag; an answer that begins with more of them is content."""

_OPENED = r'\s*\{(\s*"(type|id)"\s*:\s*("([^"\\]|\\.)*"|-?[0-9]+)\s*,)*\s*'
"""An object, up to the first key that tells whether it is a call (``CallObject`` reads no others before it)."""


class Llama3Json:
    name = "llama3_json"
    template_marks = ("<|start_header_id|>", '"parameters"')
    needs_special_tokens = True
    reads_thoughts = False

    def parser(self, *, forced: bool = False) -> OutputParser:
        return BareJsonParser()

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> str:
        return bare_calls(tools, several=several, arguments_key="parameters")

    def open_grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
        """An answer that begins with an object is a call as soon as a key of a call is in it."""
        calls = [f"CALL_{index} arguments_{index} CLOSE" for index in range(len(tools))]
        names = (f'{_OPENED}"name"\\s*:\\s*{in_regex(quoted(tool["name"]))}\\s*,' for tool in tools)
        begins = (f'CALL_{index}: /{name}\\s*"parameters"\\s*:\\s*/\n' for index, name in enumerate(names))
        tag = f"({marker(PYTHON_TAG, special)})? " if PYTHON_TAG in special else ""
        return (
            f'start: TEXT | {tag}call (";" call)*\n'
            + f'TEXT: /{ANY}/ & ~/{_OPENED}"(name|parameters|arguments)"{ANY}/ & ~/\\s*{in_regex(PYTHON_TAG)}{ANY}/\n'
            + "".join(begins)
            + "CLOSE: /\\s*\\}/\n"
            + one_of("call", calls)
            + arguments_rules(tools)
        )


class BareJsonParser:
    """Calls only where the answer begins with one; several are parted by semicolons."""

    def __init__(self) -> None:
        self._before = ""
        self._call: CallObject | None = None
        self._is_content = False
        self._num_calls = 0
        self._events: list[Event] = []

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            if self._is_content:
                events.append(Content(text))
                break
            text = self._between_calls(text) if self._call is None else self._in_call(self._call, text)
            events.extend(self._take_events())
        return events

    def end(self) -> list[Event]:
        raw = self._call.raw if self._call is not None and not self._call.has_begun else ""
        left = self._before + raw
        # Blanks and a semicolon behind a call say nothing.
        return [Content(left)] if left and (raw or not self._num_calls) else []

    def _between_calls(self, text: str) -> str:
        """Before a call: blanks, the tag, a semicolon after the first. Anything else makes all the rest content."""
        self._before += text
        rest = self._before.lstrip(BLANK + (";" if self._num_calls else ""))
        rest = rest[len(PYTHON_TAG) :].lstrip(BLANK) if rest.startswith(PYTHON_TAG) else rest
        if rest.startswith("{"):
            self._before = self._before[: len(self._before) - len(rest)]
            self._call = CallObject()
            return rest
        if (rest and not PYTHON_TAG.startswith(rest)) or len(self._before) > MAX_BEFORE:
            self._become_content(self._before)
        return ""

    def _in_call(self, call: CallObject, text: str) -> str:
        events, text = call.feed(text)
        self._events = [*self._events, *events]
        if call.has_begun:
            self._before = ""
        if call.is_broken and not call.has_begun:
            self._become_content(self._before + call.raw)
        elif call.is_broken:
            self._is_content = True
        elif call.is_over:
            self._call, self._before = None, ""
            self._num_calls += 1
        return text

    def _become_content(self, text: str) -> None:
        self._is_content, self._call, self._before = True, None, ""
        self._events = [*self._events, Content(text)] if text else self._events

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


LLAMA3_JSON = Llama3Json()
