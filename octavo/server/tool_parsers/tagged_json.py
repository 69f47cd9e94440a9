"""Calls as JSON objects between tags, as Hermes and Qwen write them: <tool_call>{"name": ...}</tool_call>."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.server.output_events import Content, Event, OutputParser
from octavo.server.tool_parsers.call_object import CallObject
from octavo.server.tool_parsers.scanning import MarkerFinder
from octavo.server.tool_parsers.tool_format import Tool, any_call, json_rule, quoted


class Hermes:
    name = "hermes"
    template_marks = ("<tool_call>", "</tool_call>")
    needs_special_tokens = False
    reads_thoughts = False

    def parser(self, *, forced: bool = False) -> OutputParser:
        return TaggedJsonParser("<tool_call>", "</tool_call>")

    def grammar(self, tools: Sequence[Tool], *, several: bool) -> str:
        more = ' ("\\n" call)*' if several else ""
        begin, end = quoted("<tool_call>\n"), quoted("\n</tool_call>")
        return f"start: call{more}\ncall: {begin} object {end}\nobject: {json_rule(any_call(tools))}\n"

    def open_grammar(self, tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
        """The begin of a call is found as soon as it is there (lazily), so text cannot hold one that is not held."""
        begin, line, end = quoted("<tool_call>"), quoted("\n"), quoted("\n</tool_call>")
        text = f"begin[lazy]: TEXT {begin}\nTEXT: /(.|\\n)*/\n"
        return f"start: call* TEXT\ncall: begin {line} object {end}\n{text}object: {json_rule(any_call(tools))}\n"


class TaggedJsonParser:
    """Content, until a tag begins a call; what is in the tags and is no call is content, tags and all."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin = self._opened = begin
        self._outside = MarkerFinder([begin])
        self._behind = MarkerFinder([end, begin])
        self._call: CallObject | None = None
        self._is_behind = False
        self._is_after_call = False

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text:
            if self._call is not None:
                text = self._in_call(self._call, text, events)
            elif self._is_behind:
                text = self._behind_call(text, events)
            else:
                text = self._in_content(text, events)
        return events

    def end(self) -> list[Event]:
        events: list[Event] = []
        if self._call is not None and not self._call.has_begun:
            self._say_content(self._opened + self._call.raw, events)
        if not self._is_behind:
            self._say_content(self._outside.end(), events)
        return events

    def _in_content(self, text: str, events: list[Event]) -> str:
        content, marker, text = self._outside.feed(text)
        self._say_content(content, events)
        if marker is not None:
            self._call = CallObject()
            self._opened = self._outside.blanks + marker
        return text

    def _in_call(self, call: CallObject, text: str, events: list[Event]) -> str:
        found, text = call.feed(text)
        events.extend(found)
        if call.is_broken and not call.has_begun:
            self._say_content(self._opened + call.raw, events)
            self._call = None
        elif call.is_over or call.is_broken:
            self._call, self._is_behind, self._is_after_call = None, True, True
        return text

    def _behind_call(self, text: str, events: list[Event]) -> str:
        """Skip what a model writes between an object and its closing tag; a new call needs none."""
        _, marker, text = self._behind.feed(text)
        if marker is not None:
            self._is_behind = False
            self._opened = self._begin
            self._call = CallObject() if marker == self._begin else None
        return text

    def _say_content(self, text: str, events: list[Event]) -> None:
        """Blanks between calls, and behind the last, are no content."""
        if self._is_after_call:
            text = text.lstrip()
            self._is_after_call = not text
        _say(text, events)


def _say(text: str, events: list[Event]) -> None:
    if text:
        events.append(Content(text))


HERMES = Hermes()
