"""A call written as a JSON object: {"name": ..., "arguments": {...}}."""

from __future__ import annotations

import json
from enum import Enum, auto

from octavo.server.output_events import CallArguments, CallBegins, Event
from octavo.server.tool_parsers.scanning import JsonValue

BLANK = " \t\r\n"
NAME_KEYS = frozenset({"name"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
OTHER_KEYS = frozenset({"type", "id"})


class _At(Enum):
    OBJECT = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    IN_VALUE = auto()
    COMMA_OR_END = auto()


class CallObject:
    """Reads one object; keys in any order. Arguments stream as they are written once the name is known.

    ``is_over``: the object is complete. ``is_broken``: it is no call; ``raw`` is then all its text so far.
    """

    def __init__(self) -> None:
        self.is_over = False
        self.is_broken = False
        self._raw: list[str] = []
        self._at = _At.OBJECT
        self._key = ""
        self._value = JsonValue()
        self._pieces: list[str] = []
        self._name: str | None = None
        self._streams = False
        self._waiting: list[str] = []
        self._has_arguments = False

    @property
    def raw(self) -> str:
        return "".join(self._raw)

    @property
    def has_begun(self) -> bool:
        """Whether the call was announced: its text is no content any more."""
        return self._name is not None

    def feed(self, text: str) -> tuple[list[Event], str]:
        """Return events and the text behind the object ("" until it is over or broken)."""
        events: list[Event] = []
        start = index = 0
        while index < len(text) and not (self.is_over or self.is_broken):
            index += self._step(text, index, events)
        if not self.has_begun:
            self._raw.append(text[start:index])
        return events, text[index:]

    def _step(self, text: str, index: int, events: list[Event]) -> int:
        """Take what is at ``index``; return how many characters that was."""
        if self._at is _At.IN_VALUE:
            taken = self._value.feed(text[index:])
            self._take_piece(text[index : index + taken], events)
            return taken
        character = text[index]
        if character in BLANK:
            return 1
        if self._at in (_At.KEY, _At.KEY_OR_END, _At.VALUE) and not (self._at is _At.KEY_OR_END and character == "}"):
            return self._begin_value(character)
        self._take_punctuation(character, events)
        return 0 if self.is_broken else 1

    def _begin_value(self, character: str) -> int:
        is_key = self._at is not _At.VALUE
        if is_key and character != '"':
            self.is_broken = True
            return 0
        self._key = "" if is_key else self._key
        self._value, self._pieces = JsonValue(), []
        self._at = _At.IN_VALUE
        return 0

    def _take_punctuation(self, character: str, events: list[Event]) -> None:
        match self._at, character:
            case _At.OBJECT, "{":
                self._at = _At.KEY_OR_END
            case _At.COLON, ":":
                self._at = _At.VALUE
            case _At.COMMA_OR_END, ",":
                self._at = _At.KEY
            case ((_At.COMMA_OR_END | _At.KEY_OR_END), "}"):
                self._finish(events)
            case _:
                self.is_broken = True

    def _take_piece(self, piece: str, events: list[Event]) -> None:
        """More of a key or a value."""
        if not self._pieces:
            self._streams = self._key in ARGUMENT_KEYS and piece.startswith("{")
        if self._streams:
            self._send(piece, events)
        self._pieces.append(piece)
        if self._value.is_over:
            self._take_value("".join(self._pieces), events)

    def _take_value(self, value: str, events: list[Event]) -> None:
        if not self._key:
            self._key = _text(value) or ""
            self.is_broken = self._key not in NAME_KEYS | ARGUMENT_KEYS | OTHER_KEYS
            self._at = _At.COLON
            return
        self._at = _At.COMMA_OR_END
        if self._key in NAME_KEYS and self._name is None:
            self._take_name(_text(value), events)
        elif self._key in ARGUMENT_KEYS:
            self._has_arguments = True
            if not self._streams:
                self._send(_arguments(value), events)

    def _take_name(self, name: str | None, events: list[Event]) -> None:
        if not name:
            self.is_broken = True
            return
        self._name = name
        events.append(CallBegins(name))
        if self._waiting:
            events.append(CallArguments("".join(self._waiting)))

    def _send(self, arguments: str, events: list[Event]) -> None:
        if self._name is None:
            self._waiting.append(arguments)
        else:
            events.append(CallArguments(arguments))

    def _finish(self, events: list[Event]) -> None:
        if self._name is None:
            self.is_broken = True
            return
        self.is_over = True
        if not self._has_arguments:
            events.append(CallArguments("{}"))


def _arguments(value: str) -> str:
    """Arguments that are no object: the object that a string spells, none for null."""
    return "{}" if value == "null" else _text(value) or value


def _text(value: str) -> str | None:
    """The string that a JSON text says, None for anything else."""
    try:
        found = json.loads(value)
    except ValueError:
        return None
    return found if isinstance(found, str) else None
