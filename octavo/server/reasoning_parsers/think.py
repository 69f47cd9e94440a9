"""Thoughts between <think> and </think>."""

from __future__ import annotations

from octavo.server.output_events import Content, Event, OutputParser, PlainText, Reasoning
from octavo.server.tool_parsers.scanning import MarkerFinder
from octavo.tokenizer.reasoning_style import ReasoningStyle


class ThinkParser:
    """``begins_inside``: the prompt, or the habit of the model, opened the thoughts already.

    Blanks around the tags belong to neither side. An answer that is cut off inside its thoughts has no content.
    """

    def __init__(self, *, begins_inside: bool, begin: str = "<think>", end: str = "</think>") -> None:
        self._begin = begin
        self._end = end
        self._finder: MarkerFinder | None = MarkerFinder([begin, end] if begins_inside else [begin])
        self._is_inside = begins_inside
        self._is_at_start = True
        self._was_inside = begins_inside

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        while text and self._finder is not None:
            said, marker, text = self._finder.feed(text)
            self._say(said, events)
            if marker is not None:
                self._pass(marker)
        self._say(text, events)
        return events

    def end(self) -> list[Event]:
        events: list[Event] = []
        if self._finder is not None:
            self._say(self._finder.end(), events)
        return events

    def _pass(self, marker: str) -> None:
        self._is_inside = marker == self._begin
        self._is_at_start = True
        self._was_inside = True
        self._finder = MarkerFinder([self._end]) if self._is_inside else None

    def _say(self, text: str, events: list[Event]) -> None:
        if self._is_at_start and self._was_inside:
            text = text.lstrip()
        if text:
            self._is_at_start = False
            events.append(Reasoning(text) if self._is_inside else Content(text))


def parser_of_style(style: ReasoningStyle, prompt_tail: str) -> OutputParser:
    """The parser for an answer to a prompt that ends with ``prompt_tail``, which may have opened or closed thoughts."""
    if style.is_closed_by(prompt_tail):
        return PlainText()
    return ThinkParser(begins_inside=style.is_opened_by(prompt_tail), begin=style.begin, end=style.end)
