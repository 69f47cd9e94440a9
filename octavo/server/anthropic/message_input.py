"""Anthropic's messages, tools and thinking in the words of chat templates."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from octavo.server.answer_parts import called
from octavo.server.anthropic.message_words import CountTokensRequest
from octavo.server.api_error import ApiError
from octavo.server.tool_parsers.tool_format import Tool
from octavo.server.tool_use import ToolUse, checked_function, checked_list, tool_use

_CHOICES = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
_OF_ASSISTANT = ("text", "thinking", "redacted_thinking", "tool_use")
_OF_USER = ("text", "tool_result")

Message = dict[str, Any]
BlockObject = Mapping[str, Any]


def message_tools(body: CountTokensRequest) -> ToolUse:
    """What the request says of tools. Raises ApiError."""
    functions = [_function(tool, f"tools[{index}]") for index, tool in enumerate(checked_list(body.tools))]
    choice = body.tool_choice or {"type": "auto"}
    kind, name = choice.get("type"), choice.get("name")
    if kind not in _CHOICES:
        raise ApiError(400, f"tool_choice.type can be {', '.join(_CHOICES)}.", param="tool_choice")
    if kind == "tool" and not isinstance(name, str):
        raise ApiError(400, "tool_choice must name its tool.", param="tool_choice")
    several = not choice.get("disable_parallel_tool_use")
    return tool_use(functions, _CHOICES[kind], name=name if kind == "tool" else None, several=several)


def _function(tool: Any, where: str) -> Tool:
    kind = tool.get("type") if isinstance(tool, Mapping) else "none"
    if kind not in (None, "custom"):
        raise ApiError(400, f"{where}: a tool of type {kind!r:.60} is not possible; use custom.", param="tools")
    renamed = {"name": tool.get("name"), "description": tool.get("description"), "strict": tool.get("strict")}
    given = {**renamed, "parameters": tool.get("input_schema")}
    return checked_function({key: value for key, value in given.items() if value is not None}, where)


def thinking_options(body: CountTokensRequest) -> dict[str, Any]:
    """Variables of the template that a request sets."""
    if body.thinking is None:
        return {}
    kind = body.thinking.get("type")
    if kind not in ("enabled", "adaptive", "disabled"):
        raise ApiError(400, "thinking.type can be enabled, adaptive or disabled.", param="thinking")
    return {"enable_thinking": kind != "disabled"}


def thinking_budget(body: CountTokensRequest) -> int | None:
    """The most tokens of thought that a request allows; None for any number. Raises ApiError."""
    budget = (body.thinking or {}).get("budget_tokens")
    if budget is not None and (not isinstance(budget, int) or isinstance(budget, bool) or budget < 0):
        raise ApiError(400, "thinking.budget_tokens must be a number of tokens.", param="thinking")
    return budget


def chat_messages(body: CountTokensRequest) -> list[Message]:
    """The conversation with its system text first. Raises ApiError for blocks that cannot be served."""
    if not body.messages:
        raise ApiError(400, "messages must not be empty.", param="messages")
    system = [] if not body.system else [{"role": "system", "content": _text_of(body.system, "system")}]
    found = [message for i, each in enumerate(body.messages) for message in _messages(each, f"messages[{i}]")]
    return [*system, *found]


def _messages(message: Mapping[str, Any], where: str) -> Iterator[Message]:
    role, content = message.get("role"), message.get("content")
    where += ".content"
    if role not in ("user", "assistant", "system"):
        raise ApiError(400, f"{where.removesuffix('.content')}.role must be user or assistant.", param="messages")
    if isinstance(content, str) or role == "system":
        yield {"role": role, "content": _text_of(content, where)}
    elif role == "assistant":
        yield _assistant_message(_blocks(content, where, _OF_ASSISTANT))
    else:
        yield from _user_messages(_blocks(content, where, _OF_USER), where)


def _assistant_message(blocks: list[BlockObject]) -> Message:
    """One message for all that the model said in a turn."""
    message: Message = {"role": "assistant", "content": _joined(blocks, "text", "\n")}
    if thoughts := _joined(blocks, "thinking", ""):
        message["reasoning_content"] = thoughts
    if calls := [_called(block) for block in blocks if block["type"] == "tool_use"]:
        message["tool_calls"] = calls
        message["content"] = message["content"] or None
    return message


def _user_messages(blocks: list[BlockObject], where: str) -> Iterator[Message]:
    """Results are messages of their own, in their order with what the user says."""
    said: list[BlockObject] = []
    for block in blocks:
        if block["type"] == "text":
            said.append(block)
            continue
        if said:
            yield {"role": "user", "content": _joined(said, "text", "\n")}
            said = []
        content = block.get("content")
        result = _text_of(content, f"{where}: tool_result") if content else ""
        yield {"role": "tool", "tool_call_id": block["tool_use_id"], "content": result}
    if said:
        yield {"role": "user", "content": _joined(said, "text", "\n")}


def _called(block: BlockObject) -> dict[str, Any]:
    return called(block["id"], block["name"], json.dumps(block["input"], ensure_ascii=False))


def _joined(blocks: list[BlockObject], kind: str, separator: str) -> str:
    return separator.join(block[kind] for block in blocks if block["type"] == kind)


def _text_of(content: Any, where: str) -> str:
    """Text, or the texts of a list of blocks."""
    return content if isinstance(content, str) else _joined(_blocks(content, where, ("text",)), "text", "\n")


_FIELDS: dict[str, dict[str, type]] = {
    "text": {"text": str},
    "thinking": {"thinking": str},
    "tool_use": {"id": str, "name": str, "input": dict},
    "tool_result": {"tool_use_id": str},
}
"""Fields that a block must have."""


def _blocks(content: Any, where: str, kinds: tuple[str, ...]) -> list[BlockObject]:
    """Blocks of these kinds, with the fields that they need."""
    param = "system" if where == "system" else "messages"
    if not isinstance(content, list) or not content:
        raise ApiError(400, f"{where} must be text or a non-empty list of blocks.", param=param)
    for index, block in enumerate(content):
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind not in kinds:
            raise ApiError(
                400,
                f"{where}[{index}]: a block of type {kind!r:.60} is not possible; use {', '.join(kinds)}.",
                param=param,
            )
        wrong = [name for name, type_ in _FIELDS.get(kind, {}).items() if not isinstance(block.get(name), type_)]
        if wrong:
            raise ApiError(400, f"{where}[{index}]: a block of type {kind} needs {' and '.join(wrong)}.", param=param)
    return content
