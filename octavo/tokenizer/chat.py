"""Conversations: what a valid one looks like, and how a rendered one becomes token ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from octavo.tokenizer.added_tokens import AddedTokens
from octavo.tokenizer.chat_template import check_plain
from octavo.tokenizer.encoder import Encoder
from octavo.tokenizer.vocabulary import Vocabulary
from octavo.words.errors import RequestError

Message = dict[str, Any]
Render = Callable[[Mapping[str, Any]], str]

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
_STANDS_FOR_CONTENT = ("tool_calls", "function_call", *_REASONING_NAMES)
# A character that Unicode promises never to assign; no template, trim or split treats it specially.
_MARK = "\ufdd0"
# The space at its end shows whether the template trims contents.
_OPEN_END = "\ufdd1continue\ufdd1 "


def check_messages(messages: object, *, keeps_developer: bool = False) -> list[Message]:
    """Return a checked copy of ``messages``, in the form that templates expect.

    Text parts are joined with newlines into one string, arguments of tool calls are parsed, entries that are None are
    left out, and the role developer becomes system where the template does not know it. Raises RequestError naming the
    message that is wrong.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError("messages must be a non-empty list.", param="messages")
    return [_check_message(message, f"messages[{i}]", keeps_developer) for i, message in enumerate(messages)]


def check_tools(tools: object) -> list[dict[str, Any]] | None:
    """Return a checked copy of ``tools``, None for none; RequestError for anything but a list of objects."""
    if tools is None:
        return None
    if not isinstance(tools, list | tuple) or not all(isinstance(tool, Mapping) for tool in tools):
        raise RequestError("tools must be a list of objects.", param="tools")
    return [check_plain(tool, f"tools[{i}]") for i, tool in enumerate(tools)]


def continued(render: Render, names: Mapping[str, Any]) -> str:
    """Render a conversation so that it ends inside its last message, after the text that is there.

    A template that trims contents trims that text too. Raises RequestError if the last message is not an assistant's
    with text, or if the template does not write it.
    """
    *before, last = names["messages"]
    if last["role"] != "assistant" or not isinstance(last.get("content"), str):
        raise RequestError(
            "continue_final_message needs an assistant message with text as the last.", param="continue_final_message"
        )
    rendered = render({**names, "messages": [*before, {**last, "content": last["content"] + _OPEN_END}]})
    end = rendered.rfind(_OPEN_END.rstrip())
    if end < 0:
        raise RequestError(
            "continue_final_message: the chat template does not write the last message.", param="continue_final_message"
        )
    kept = rendered[:end]
    return kept if rendered.startswith(_OPEN_END, end) else kept.rstrip()


def encode_chat(encoder: Encoder, vocabulary: Vocabulary, render: Render, names: Mapping[str, Any]) -> list[int]:
    """Render and encode a conversation in which only the template can write special tokens.

    The conversation is rendered again with a mark inside everything in ``names`` that could be (the beginning of) a
    special token's text. Special tokens that are still whole there are the template's; the rest is encoded as plain
    text without the marks. Raises RequestError where marks change what the template writes, so that its own special
    tokens cannot be told from the user's.
    """
    rendered = render(names)
    special = AddedTokens({token: 1 for token in vocabulary.special_texts})
    if not any(True for _ in special.find(rendered)):
        return encoder.encode(rendered, special=False)
    marked = _marked_rendering(rendered, render, names, vocabulary.special_texts)
    if marked is None or len(list(special.find(marked))) == len(list(special.find(rendered))):
        return encoder.encode(rendered)
    return list(_encode_marked(encoder, special, marked))


def _encode_marked(encoder: Encoder, special: AddedTokens, marked: str) -> Iterator[int]:
    """The template's special tokens, and between them plain text."""
    done = 0
    for start, token in special.find(marked):
        yield from _encode_plain(encoder, marked[done:start], at_start=done == 0)
        yield from encoder.encode(token, at_start=start == 0)
        done = start + len(token)
    yield from _encode_plain(encoder, marked[done:], at_start=done == 0)


def _encode_plain(encoder: Encoder, marked: str, *, at_start: bool) -> list[int]:
    text = marked.replace(_MARK, "")
    return encoder.encode(text, special=False, at_start=at_start) if text else []


def _marked_rendering(
    rendered: str, render: Render, names: Mapping[str, Any], special_texts: frozenset[str]
) -> str | None:
    """The rendering with marks in what the user gave; None if the user gave nothing that needs one."""
    firsts = {text[0] for text in special_texts}
    if not any(first in text for text in _strings(names) for first in firsts):
        return None
    if _MARK in rendered:
        raise RequestError(f"messages hold the character U+{ord(_MARK):04X}, which is reserved.", param="messages")
    # First every character that could begin a special token; a template that looks for some such text itself
    # (</think>, say) then still has the second way, which touches whole special tokens only.
    for texts in (firsts, special_texts):
        try:
            marked = render(_mark(names, sorted(texts, key=len, reverse=True)))
        except RequestError:
            continue
        if marked.replace(_MARK, "") == rendered:
            return marked
    raise RequestError(
        "messages hold the text of a special token in a place where the chat template interprets it.", param="messages"
    )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item)


def _mark(value: Any, texts: Sequence[str]) -> Any:
    """A copy of ``value`` in which each of ``texts`` has a mark behind its first character."""
    if isinstance(value, str):
        for text in texts:
            value = value.replace(text, text[0] + _MARK + text[1:])
        return value
    if isinstance(value, dict):
        return {_mark(key, texts): _mark(item, texts) for key, item in value.items()}
    if isinstance(value, list):
        return [_mark(item, texts) for item in value]
    return value


def _check_message(message: object, where: str, keeps_developer: bool) -> Message:
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must be an object with role and content.", param="messages")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(f"{where}.role must be a non-empty string.", param="messages")
    checked: Message = {k: v for k, v in check_plain(message, where).items() if v is not None}
    checked["role"] = "system" if role == "developer" and not keeps_developer else role
    checked["content"] = _check_content(message.get("content"), checked, where)
    if "tool_calls" in checked:
        checked["tool_calls"] = _check_tool_calls(checked["tool_calls"], f"{where}.tool_calls")
    return _with_reasoning_names(checked)


def _check_content(content: object, message: Mapping[str, Any], where: str) -> str:
    """The text; an empty one beside calls or thoughts alone: many templates fail on none, and none on that."""
    if isinstance(content, str):
        return content
    if isinstance(content, list | tuple) and content:
        return "\n".join(_check_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    if content is None and message["role"] == "assistant" and any(message.get(name) for name in _STANDS_FOR_CONTENT):
        return ""
    raise RequestError(f"{where}.content must be text or a non-empty list of text parts.", param="messages")


def _check_part(part: object, where: str) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind != "text":
        raise RequestError(f"{where}: a part of type {kind!r} is not possible; use text.", param="messages")
    text = part.get("text") if isinstance(part, Mapping) else None
    if not isinstance(text, str):
        raise RequestError(f"{where}.text must be a string.", param="messages")
    return text


def _check_tool_calls(calls: Any, where: str) -> list[Any]:
    """Templates write arguments as JSON themselves, so they get them as objects."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        raise RequestError(f"{where} must be a list of objects.", param="messages")
    for i, call in enumerate(calls):
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("arguments"), str):
            function["arguments"] = _parse_arguments(function["arguments"], f"{where}[{i}].function.arguments")
    return calls


def _parse_arguments(text: str, where: str) -> Any:
    try:
        return check_plain(json.loads(text or "{}"), where)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{where} must be JSON.", param="messages") from error


def _with_reasoning_names(message: Message) -> Message:
    """Templates read a message's reasoning as reasoning_content or as thinking; clients send either, or reasoning."""
    given = [message[name] for name in _REASONING_NAMES if name in message]
    if given:
        message["reasoning_content"] = given[0]
        message.setdefault("thinking", given[0])
    return message
