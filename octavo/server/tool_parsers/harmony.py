"""The channels of gpt-oss: thoughts, calls and the answer as messages between special tokens.

``<|channel|>analysis<|message|>thoughts<|end|><|start|>assistant<|channel|>commentary to=functions.NAME
<|constrain|>json<|message|>{...}<|call|>``, and ``<|channel|>final<|message|>answer<|return|>``. A header may name its
tool before its channel: `` to=functions.NAME<|channel|>commentary json<|message|>``, also where the answer begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from octavo.server.output_events import (
    CallArguments,
    CallBegins,
    Content,
    Event,
    Reasoning,
)
from octavo.server.tool_parsers.open_rules import arguments_rules, in_regex, marker, one_of, text_without
from octavo.server.tool_parsers.scanning import MarkerFinder
from octavo.server.tool_parsers.special_token_format import SpecialTokenFormat
from octavo.server.tool_parsers.tool_format import Tool

CHANNEL, MESSAGE, START = "<|channel|>", "<|message|>", "<|start|>"
CONSTRAIN = "<|constrain|>"
ENDS = ("<|end|>", "<|call|>", "<|return|>", START, CHANNEL)
RECIPIENT = "to=functions."
MAX_HEADER = 512
"""Characters of a header that are looked at."""


class HarmonyParser:
    """Headers say where the text of the message behind them belongs; text without a header is content.

    ``_opening`` is what the answer began with, while that may be a header that names its tool first; then None.
    """

    def __init__(self) -> None:
        self._opening: str | None = ""
        self._body = MarkerFinder([*ENDS, MESSAGE])
        self._header = MarkerFinder([MESSAGE])
        self._in_header = False
        self._header_text = ""
        self._kind: type[Reasoning] | type[Content] | type[CallArguments] = Content

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        text = self._take_opening(text)
        while text:
            text = self._take_header(text, events) if self._in_header else self._take_body(text, events)
        return events

    def end(self) -> list[Event]:
        left = self._opening or self._body.end()
        return [self._kind(left)] if left and not self._in_header else []

    def _take_opening(self, text: str) -> str:
        if self._opening is None:
            return text
        self._opening += text
        opening = self._opening
        header, channel, rest = opening.lstrip().partition(CHANNEL)
        may_be_header = RECIPIENT.startswith(header[: len(RECIPIENT)]) and len(opening) - len(rest) <= MAX_HEADER
        if may_be_header and not channel:
            return ""
        self._opening = None
        if not may_be_header or not header:
            return opening
        self._in_header, self._header_text = True, f"{header} "
        return rest

    def _take_body(self, text: str, events: list[Event]) -> str:
        body, marker, text = self._body.feed(text)
        if body:
            events.append(self._kind(body))
        if marker in (START, CHANNEL):
            self._in_header, self._header_text = True, ""
        elif marker is not None and marker != MESSAGE:
            self._kind = Content
        return text

    def _take_header(self, text: str, events: list[Event]) -> str:
        before, marker, text = self._header.feed(text)
        self._header_text = (self._header_text + before)[:MAX_HEADER]
        if marker is not None:
            self._in_header = False
            self._begin_message(events)
        return text

    def _begin_message(self, events: list[Event]) -> None:
        header = self._header_text
        if RECIPIENT in header:
            name = header.partition(RECIPIENT)[2].split("<|")[0].split()[0:1]
            events.append(CallBegins(name[0] if name else ""))
            self._kind = CallArguments
        else:
            self._kind = Reasoning if "analysis" in header else Content


def _open_rules(tools: Sequence[Tool], special: Mapping[str, int]) -> str | None:
    """Messages; those to a tool hold its arguments. None in a vocabulary where the markup is text."""
    if not {CHANNEL, CONSTRAIN, MESSAGE, START, "<|end|>"} <= set(special):
        return None
    channel, constrain, message, begin = (marker(each, special) for each in (CHANNEL, CONSTRAIN, MESSAGE, START))
    ends = " | ".join(marker(each, special) for each in ("<|end|>", "<|call|>") if each in special)
    kind = f"({constrain} WORDS?)? {message}"
    calls = (
        f"(WORDS? {channel} TO_{index} | TO_{index} {channel} WORDS) {kind} arguments_{index}"
        for index in range(len(tools))
    )
    return (
        f"start: (TEXT | message) (({ends}) {begin} message)*\n"
        + one_of("message", [f"WORDS? {channel} WORDS {kind} TEXT?", *calls])
        + "WORDS: /[a-z ]+/\n"
        + "".join(f"TO_{i}: /[a-z ]*{in_regex(RECIPIENT + t['name'])}( [a-z ]*)?/\n" for i, t in enumerate(tools))
        + text_without("TEXT", [*ENDS, MESSAGE])
        + arguments_rules(tools)
    )


HARMONY = SpecialTokenFormat("harmony", (CHANNEL, MESSAGE), HarmonyParser, _open_rules, reads_thoughts=True)
