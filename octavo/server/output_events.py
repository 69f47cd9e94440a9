"""What the text of a model says, piece by piece: reasoning, content, and calls of tools.

A parser is fed text as it comes and returns events; a whole answer is the fold of its events, so a stream and a single
response cannot differ. How the text is cut into pieces changes how events are cut, never what they add up to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of the model's thoughts."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegins:
    """The model calls this tool; its arguments follow."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of the newest call's arguments, as JSON text."""

    text: str


PIECE = 1024
"""Characters that a parser is given at most: what it does to the rest of a piece at each marker stays small."""

Event: TypeAlias = Reasoning | Content | CallBegins | CallArguments


class OutputParser(Protocol):
    """Reads one answer, in small pieces. Work is linear; what could still be markup is held back, nothing is lost."""

    def feed(self, text: str) -> list[Event]:
        """Take more text."""

    def end(self) -> list[Event]:
        """The text is over: what was held back is content after all."""


class PlainText:
    """All text is content."""

    def feed(self, text: str) -> list[Event]:
        return [Content(text)] if text else []

    def end(self) -> list[Event]:
        return []


class Chain:
    """Reasoning first; what that parser calls content is read by the next."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first = first
        self._second = second

    def feed(self, text: str) -> list[Event]:
        return self._through(self._first.feed(text))

    def end(self) -> list[Event]:
        return [*self._through(self._first.end()), *self._second.end()]

    def _through(self, events: Iterable[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            found.extend(self._second.feed(event.text) if isinstance(event, Content) else (event,))
        return found
