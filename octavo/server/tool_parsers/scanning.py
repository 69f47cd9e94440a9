"""Finding markers and JSON values in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence

MAX_BLANKS = 64
"""Blanks before a marker that belong to it; more are content, so that holding them back costs little."""


class MarkerFinder:
    """Splits text at the first of some markers.

    Blanks right before a marker belong to it, so some are held back, as is what could be a marker's begin: never more,
    and so the work is linear in the text.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._held = ""
        self.blanks = ""
        """Those before the newest marker."""

    def feed(self, text: str) -> tuple[str, str | None, str]:
        """Return (text before the marker, the marker or None, text after it)."""
        text = self._held + text
        found = min(((at, marker) for marker in self._markers if (at := text.find(marker)) >= 0), default=None)
        if found is not None:
            self._held = ""
            at, marker = found
            begin = _begin_of_blanks(text, at)
            self.blanks = text[begin:at]
            return text[:begin], marker, text[at + len(marker) :]
        end = _begin_of_blanks(text, self._begin_of_marker(text))
        self._held = text[end:]
        return text[:end], None, ""

    def end(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held

    def _begin_of_marker(self, text: str) -> int:
        """Where a marker that is not complete may begin; the end of the text if nowhere."""
        longest = max(map(len, self._markers)) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(marker.startswith(text[start:]) for marker in self._markers):
                return start
        return len(text)


def _begin_of_blanks(text: str, end: int) -> int:
    """Where the blanks begin that stand before ``end``, at most ``MAX_BLANKS``."""
    start = max(0, end - MAX_BLANKS)
    return start + len(text[start:end].rstrip())


class JsonValue:
    """Finds the end of one JSON value, whose first character is the first it is given; checks no more than that."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._is_bare = False
        self.is_over = False

    def feed(self, text: str) -> int:
        """Return how many characters of ``text`` belong to the value."""
        for index, character in enumerate(text):
            if self._is_bare and character in ",]} \t\r\n":
                self.is_over = True
                return index
            self._take(character)
            if self.is_over:
                return index + 1
        return len(text)

    def _take(self, character: str) -> None:
        if self._in_string:
            self._take_in_string(character)
        elif character == '"':
            self._in_string = True
        elif character in "{[":
            self._depth += 1
        elif character in "}]":
            self._depth -= 1
            self.is_over = self._depth <= 0
        elif self._depth == 0:
            self._is_bare = True

    def _take_in_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False
            self.is_over = self._depth == 0
