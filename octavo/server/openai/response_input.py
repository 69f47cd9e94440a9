"""The ``input`` of a response as the messages of a conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.server.answer_parts import called
from octavo.server.api_error import ApiError
from octavo.server.openai.compaction import said_by

TEXT_PARTS = frozenset({"input_text", "output_text", "text"})


def messages_of(given: Any) -> list[dict[str, Any]]:
    """The items of ``input`` as messages. Raises ApiError for items that cannot be served."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "input must be text or a non-empty list of items.", param="input")
    conversation = _Conversation()
    for index, item in enumerate(given):
        if not isinstance(item, Mapping):
            raise ApiError(400, f"input[{index}] must be an object.", param="input")
        conversation.add(item, f"input[{index}]")
    return conversation.messages


class _Conversation:
    """Takes items. One answer may be several: thoughts go to the text or call behind them, calls to the text before."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._thoughts = ""

    def add(self, item: Mapping[str, Any], where: str) -> None:
        match item.get("type", "message"):
            case "message":
                self._add(item.get("role"), content=_content(item.get("content"), where))
            case "reasoning":
                self._thoughts += _thoughts(item)
            case "function_call":
                self._add_call(item, where)
            case "function_call_output":
                content = _content(item.get("output"), f"{where}.output")
                self._add("tool", content=content, tool_call_id=_text(item, "call_id", where))
            case "compaction":
                self._add("assistant", content=said_by(item.get("encrypted_content"), where))
            case kind:
                raise ApiError(400, f"{where}: an item of type {kind!r:.60} is not possible.", param="input")

    def _add(self, role: Any, **fields: Any) -> None:
        message = {"role": role, **fields}
        if role == "assistant" and self._thoughts:
            message["reasoning_content"] = self._thoughts
        self._thoughts = ""
        self.messages.append(message)

    def _add_call(self, item: Mapping[str, Any], where: str) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant" or self._thoughts:
            self._add("assistant", content=None)
        call = called(_text(item, "call_id", where), _text(item, "name", where), _text(item, "arguments", where))
        self.messages[-1].setdefault("tool_calls", []).append(call)


def _text(item: Mapping[str, Any], name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise ApiError(400, f"{where}.{name} must be text.", param="input")
    return value


def _thoughts(item: Mapping[str, Any]) -> str:
    """The text of thoughts, in whichever of the two places; what only its maker can read is left out."""
    for parts in (item.get("content"), item.get("summary")):
        given = parts if isinstance(parts, list) else []
        texts = [part.get("text") for part in given if isinstance(part, Mapping)]
        if found := "".join(text for text in texts if isinstance(text, str)):
            return found
    return ""


def _content(content: Any, where: str) -> Any:
    return [_text_part(part, where) for part in content] if isinstance(content, list) else content


def _text_part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS:
        raise ApiError(400, f"{where}: content of type {kind!r:.60} is not possible; use input_text.", param="input")
    return {"type": "text", "text": part.get("text")}
