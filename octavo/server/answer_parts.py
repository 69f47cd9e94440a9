"""An answer as its parts: thoughts, text, and calls, in the order in which the model wrote them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from octavo.server.dialect import AnswerReader
from octavo.server.output_events import CallArguments, CallBegins, Content, Event, Reasoning


@dataclass
class Part:
    """A stretch of thoughts, of text, or one call: ``kind`` is the event that more of it comes by."""

    kind: type[Reasoning] | type[Content] | type[CallArguments]
    text: str = ""
    name: str = ""
    call_id: str = ""


@dataclass
class PartsOfAnswer:
    """The fold of an answer's events, in order. Ids of calls begin with ``id_prefix``."""

    parts: list[Part] = field(default_factory=list)
    id_prefix: str = "call_"

    def add(self, event: Event) -> tuple[Part, bool]:
        """Take an event; the part it belongs to, and whether it begins with it."""
        if isinstance(event, CallBegins):
            call_id = f"{self.id_prefix}{secrets.token_hex(12)}"
            self.parts.append(Part(CallArguments, name=event.name, call_id=call_id))
            return self.parts[-1], True
        is_new = not self.parts or self.parts[-1].kind is not type(event)
        if is_new:
            self.parts.append(Part(type(event)))
        self.parts[-1].text += event.text
        return self.parts[-1], is_new

    @property
    def calls(self) -> list[Part]:
        """The calls, in order."""
        return [part for part in self.parts if part.kind is CallArguments]

    def text_of(self, kind: type[Reasoning] | type[Content]) -> str | None:
        """All thoughts or all content; None where there is none."""
        found = [part.text for part in self.parts if part.kind is kind]
        return "".join(found) if found else None

    @property
    def message(self) -> dict[str, Any]:
        """The answer as the next message of its conversation, as chat templates expect it."""
        calls = [called(call.call_id, call.name, call.text) for call in self.calls]
        thoughts, content = self.text_of(Reasoning), self.text_of(Content)
        message = {"role": "assistant", "content": content if calls else content or ""}
        if thoughts is not None:
            message["reasoning_content"] = thoughts
        return {**message, "tool_calls": calls} if calls else message


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    """A call in a message. Arguments that are no JSON (the model's own, or cut) are shown to it as a text."""
    try:
        json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        arguments = json.dumps(arguments)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@dataclass(frozen=True, slots=True)
class PartChange:
    """What becomes of the part with this index; ``text`` is what is new as it grows."""

    what: Literal["begins", "grows", "ends"]
    index: int
    part: Part
    text: str = ""


class PartStream:
    """Tells one answer by how its parts change: each begins, grows, and ends before the next begins.

    An answer that says nothing is one part of empty text.
    """

    def __init__(self, reader: AnswerReader, *, id_prefix: str = "call_") -> None:
        self._reader = reader
        self.answer = PartsOfAnswer(id_prefix=id_prefix)

    def take(self, text: str, *, is_last: bool) -> list[PartChange]:
        """Take more text, the last of the answer or not."""
        changes = [change for event in self._reader.take(text, is_last=is_last) for change in self._changes(event)]
        if is_last and not self.answer.parts:
            changes += self._changes(Content(""))
        return [*changes, *self._end()] if is_last else changes

    def _changes(self, event: Event) -> Iterator[PartChange]:
        before = self._end()
        part, is_new = self.answer.add(event)
        index = len(self.answer.parts) - 1
        if is_new:
            yield from before
            yield PartChange("begins", index, part)
        if not isinstance(event, CallBegins) and event.text:
            yield PartChange("grows", index, part, event.text)

    def _end(self) -> list[PartChange]:
        parts = self.answer.parts
        return [PartChange("ends", len(parts) - 1, parts[-1])] if parts else []
