"""The parts of an answer as items of a response, and as the events that tell of them."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

from octavo.server.answer_parts import Part, PartChange
from octavo.server.openai.response_words import (
    FunctionCall,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    Status,
)
from octavo.server.output_events import CallArguments, Content, Reasoning

ItemEvent = tuple[str, dict[str, Any]]
"""The type of an event without ``response.``, and its fields."""

_ID_PREFIXES = {Content: "msg_", Reasoning: "rs_", CallArguments: "fc_"}
_TEXTS = {Content: "output_text", Reasoning: "reasoning_text", CallArguments: "function_call_arguments"}


class ResponseItems:
    """Gives parts their ids and their forms. ``ending`` is the status of a part that ends."""

    def __init__(self) -> None:
        self._ids: list[str] = []
        self.items: list[OutputItem] = []
        """The items of the parts that have ended."""

    def events(self, change: PartChange, ending: Status) -> Iterator[ItemEvent]:
        """What is told of a change."""
        part, where = change.part, {"output_index": change.index}
        match change.what:
            case "begins":
                self._ids.append(f"{_ID_PREFIXES[part.kind]}{secrets.token_hex(16)}")
                yield "output_item.added", {**where, "item": self._item(change.index, part, "in_progress", "")}
                yield from self._in_item(change, "content_part.added", text="")
            case "grows":
                more: dict[str, Any] = {"logprobs": []} if part.kind is Content else {}
                yield f"{_TEXTS[part.kind]}.delta", {**self._where(change), "delta": change.text, **more}
            case "ends":
                self.items.append(self._item(change.index, part, ending, part.text))
                yield f"{_TEXTS[part.kind]}.done", {**self._where(change), **_whole(part)}
                yield from self._in_item(change, "content_part.done", text=part.text)
                yield "output_item.done", {**where, "item": self.items[-1]}

    def _in_item(self, change: PartChange, kind: str, *, text: str) -> Iterator[ItemEvent]:
        """An event of the one content part that an item has, unless it is a call."""
        if change.part.kind is not CallArguments:
            yield kind, {**self._where(change), "part": _content(change.part, text)}

    def _where(self, change: PartChange) -> dict[str, Any]:
        where: dict[str, Any] = {"item_id": self._ids[change.index], "output_index": change.index}
        return where if change.part.kind is CallArguments else {**where, "content_index": 0}

    def _item(self, index: int, part: Part, status: Status, text: str) -> OutputItem:
        item_id = self._ids[index]
        if part.kind is CallArguments:
            return FunctionCall(id=item_id, status=status, call_id=part.call_id, name=part.name, arguments=text)
        content = [] if status == "in_progress" else [_content(part, text)]
        if part.kind is Reasoning:
            return ReasoningItem(id=item_id, status=status, content=content)
        return OutputMessage(id=item_id, status=status, content=content)


def _content(part: Part, text: str) -> Any:
    return ReasoningText(text=text) if part.kind is Reasoning else OutputText(text=text)


def _whole(part: Part) -> dict[str, Any]:
    if part.kind is CallArguments:
        return {"name": part.name, "arguments": part.text}
    return {"text": part.text, "logprobs": []} if part.kind is Content else {"text": part.text}
