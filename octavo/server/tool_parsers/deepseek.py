"""Calls as DeepSeek V3 and V3.1 write them: markers around a name and JSON arguments, which V3 puts in a code fence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo.server.output_events import CallArguments, CallBegins, Content, Event
from octavo.server.tool_parsers.open_rules import arguments_rules, marker, one_of, text_up_to, text_without
from octavo.server.tool_parsers.scanning import JsonValue, MarkerFinder
from octavo.server.tool_parsers.special_token_format import SpecialTokenFormat
from octavo.server.tool_parsers.tool_format import Tool, quoted

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
FENCED_KIND, FENCE_BEGIN, FENCE_END = "function", "\n```json\n", "\n```"
MAX_HEAD = 512
"""Characters before the arguments; what goes on for longer is no call."""


class DeepSeekParser:
    """Each state is a method that takes text and returns what it leaves for the next."""

    def __init__(self) -> None:
        self._content = MarkerFinder([CALLS_BEGIN, CALL_BEGIN])
        self._between = MarkerFinder([CALL_BEGIN, CALLS_END])
        self._state: Callable[[str], str] = self._in_content
        self._events: list[Event] = []
        self._head = ""
        self._opened = CALL_BEGIN
        self._value = JsonValue()

    def feed(self, text: str) -> list[Event]:
        while text:
            text = self._state(text)
        events, self._events = self._events, []
        return events

    def end(self) -> list[Event]:
        left = self._opened + self._head if self._state == self._in_head else self._content.end()
        return [Content(left)] if left else []

    def _in_content(self, text: str) -> str:
        content, marker, text = self._content.feed(text)
        if content:
            self._events.append(Content(content))
        if marker is not None:
            self._head, self._opened = "", self._content.blanks + CALL_BEGIN
            self._state = self._in_head if marker == CALL_BEGIN else self._between_calls
        return text

    def _between_calls(self, text: str) -> str:
        _, marker, text = self._between.feed(text)
        if marker is not None:
            self._head, self._opened = "", CALL_BEGIN
            self._state = self._in_head if marker == CALL_BEGIN else self._in_content
        return text

    def _in_head(self, text: str) -> str:
        """Up to the arguments: name, separator; or kind, separator, name and a code fence."""
        before, brace, behind = text.partition("{")
        self._head += before
        if len(self._head) > MAX_HEAD:
            self._events.append(Content(self._opened + self._head))
            self._state = self._in_content
            return brace + behind
        if not brace:
            return ""
        kind, _, rest = self._head.partition(SEPARATOR)
        name = rest.split("\n", 1)[0] if kind.strip() == FENCED_KIND else kind
        self._events.append(CallBegins(name.strip()))
        self._value, self._state = JsonValue(), self._in_arguments
        return brace + behind

    def _in_arguments(self, text: str) -> str:
        taken = self._value.feed(text)
        self._events.append(CallArguments(text[:taken]))
        if self._value.is_over:
            self._state = self._between_calls
        return text[taken:]


def _open_rules(tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
    begin, end, separator = (marker(text, special) for text in (CALL_BEGIN, CALL_END, SEPARATOR))
    calls = []
    for index, tool in enumerate(tools):
        name, arguments = quoted(tool["name"]), f"arguments_{index}"
        fenced = f"{name} {quoted(FENCE_BEGIN)} {arguments} {quoted(FENCE_END)}"
        calls += [f"{name} {separator} {arguments}", f"{quoted(FENCED_KIND)} {separator} {fenced}"]
    return (
        f'start: TEXT | before {begin} call {end} ("\\n"? {begin} call {end})* {marker(CALLS_END, special)}\n'
        + text_up_to("before", "TEXT", CALLS_BEGIN, special)
        + text_without("TEXT", [CALLS_BEGIN, CALL_BEGIN])
        + one_of("call", calls)
        + arguments_rules(tools)
    )


DEEPSEEK = SpecialTokenFormat("deepseek", (CALL_BEGIN,), DeepSeekParser, _open_rules)
