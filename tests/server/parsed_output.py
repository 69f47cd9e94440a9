"""Whole answers as parsers read them: the fold of a parser's events, for comparing ways to cut a text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.server.output_events import PIECE, CallArguments, CallBegins, Content, Event, OutputParser, Reasoning


@dataclass
class ParsedCall:
    name: str
    arguments: str = ""


@dataclass
class ParsedOutput:
    """A whole answer; ``reasoning`` and ``content`` are None where there was none."""

    reasoning: str | None = None
    content: str | None = None
    calls: list[ParsedCall] = field(default_factory=list)

    def add(self, events: Iterable[Event]) -> None:
        """Fold more events in."""
        for event in events:
            match event:
                case Reasoning(text):
                    self.reasoning = (self.reasoning or "") + text
                case Content(text):
                    self.content = (self.content or "") + text
                case CallBegins(name):
                    self.calls.append(ParsedCall(name))
                case CallArguments(text):
                    self.calls[-1].arguments += text


def parse(parser: OutputParser, text: str) -> ParsedOutput:
    """A whole text at once."""
    output = ParsedOutput()
    for start in range(0, len(text), PIECE):
        output.add(parser.feed(text[start : start + PIECE]))
    output.add(parser.end())
    return output
