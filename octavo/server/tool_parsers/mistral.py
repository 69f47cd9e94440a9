"""Calls as Mistral writes them: [TOOL_CALLS][{"name": ..., "arguments": {...}}], or [TOOL_CALLS]name[ARGS]{...}.

Behind the name an id of the call may stand: [TOOL_CALLS]name[CALL_ID]abcdefghi[ARGS]{...}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from octavo.server.output_events import CallArguments, CallBegins, Content, Event
from octavo.server.tool_parsers.call_object import BLANK, CallObject
from octavo.server.tool_parsers.open_rules import (
    arguments_rules,
    marker,
    object_rules,
    one_of,
    text_up_to,
    text_without,
)
from octavo.server.tool_parsers.scanning import JsonValue, MarkerFinder
from octavo.server.tool_parsers.special_token_format import SpecialTokenFormat
from octavo.server.tool_parsers.tool_format import Tool, quoted

TOOL_CALLS = "[TOOL_CALLS]"
CALL_ID = "[CALL_ID]"
ARGS = "[ARGS]"
MAX_NAME = 256
"""Characters between the marker and the arguments; what goes on for longer is no call."""


class MistralParser:
    """Each state is a method that takes text and returns what it leaves for the next."""

    def __init__(self) -> None:
        self._finder = MarkerFinder([TOOL_CALLS])
        self._state: Callable[[str], str] = self._in_content
        self._events: list[Event] = []
        self._held = ""
        self._call = CallObject()
        self._value = JsonValue()

    def feed(self, text: str) -> list[Event]:
        while text:
            text = self._state(text)
        return self._take_events()

    def end(self) -> list[Event]:
        if self._state == self._in_object and not self._call.has_begun:
            self._held += self._call.raw
        if self._state in (self._after_marker, self._in_name, self._in_list, self._in_object):
            self._say(self._held)
        self._say(self._finder.end())
        return self._take_events()

    def _in_content(self, text: str) -> str:
        content, marker, text = self._finder.feed(text)
        self._say(content)
        if marker is not None:
            self._held, self._state = self._finder.blanks + marker, self._after_marker
        return text

    def _after_marker(self, text: str) -> str:
        rest = text.lstrip(BLANK)
        self._held += text[: len(text) - len(rest)]
        if rest:
            self._state = self._in_list if rest[0] == "[" else self._in_name
            self._held += "[" if rest[0] == "[" else ""
        return rest[1:] if rest[:1] == "[" else rest

    def _in_list(self, text: str) -> str:
        """Between the calls of a list; what is held opened it, and no call has begun yet."""
        rest = text.lstrip(BLANK + ",")
        self._held += text[: len(text) - len(rest)] if self._held else ""
        if rest.startswith("{"):
            self._call, self._state = CallObject(), self._in_object
        elif rest.startswith("]"):
            self._held, self._state = "", self._in_content
            return rest[1:]
        elif rest:
            self._say(self._held)
            self._held, self._state = "", self._in_content
        return rest

    def _in_object(self, text: str) -> str:
        events, text = self._call.feed(text)
        self._events.extend(events)
        if self._call.is_over:
            self._held, self._state = "", self._in_list
        elif self._call.is_broken:
            if not self._call.has_begun:
                self._say(self._held + self._call.raw)
            self._held, self._state = "", self._in_content
        return text

    def _in_name(self, text: str) -> str:
        """name[ARGS]{...} or name{...}"""
        before, brace, behind = text.partition("{")
        self._held += before
        if not brace and len(self._held) <= MAX_NAME:
            return ""
        name = self._held.partition(TOOL_CALLS)[2].removesuffix(ARGS).partition(CALL_ID)[0].strip()
        if not name or len(self._held) > MAX_NAME or any(character in BLANK for character in name):
            self._say(self._held)
            self._held, self._state = "", self._in_content
            return brace + behind
        self._events.append(CallBegins(name))
        self._held, self._value, self._state = "", JsonValue(), self._in_arguments
        return brace + behind

    def _in_arguments(self, text: str) -> str:
        taken = self._value.feed(text)
        self._events.append(CallArguments(text[:taken]))
        if self._value.is_over:
            self._state = self._in_content
        return text[taken:]

    def _say(self, text: str) -> None:
        if text:
            self._events.append(Content(text))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _open_rules(tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
    """By name only where the vocabulary has a token for that."""
    mark, args = marker(TOOL_CALLS, special), marker(ARGS, special)
    call_id = f"({marker(CALL_ID, special)} ID)? " if CALL_ID in special else ""
    named = [f"{quoted(tool['name'])} {call_id}{args} arguments_{index}" for index, tool in enumerate(tools)]
    by_name = f" | named ({mark} named)*" if ARGS in special else ""
    return (
        f'start: TEXT | begin (" "? "[" object (", " object)* "]"{by_name})\n'
        + text_up_to("begin", "TEXT", TOOL_CALLS, special)
        + text_without("TEXT", [TOOL_CALLS])
        + object_rules(tools)
        + (one_of("named", named) + arguments_rules(tools) if by_name else "")
        + ("ID: /[A-Za-z0-9]{1,64}/\n" if by_name and call_id else "")
    )


MISTRAL = SpecialTokenFormat("mistral", (TOOL_CALLS,), MistralParser, _open_rules)
