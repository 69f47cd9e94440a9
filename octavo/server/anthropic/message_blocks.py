"""The parts of an answer as Anthropic's blocks, and as the events that tell of them."""

from __future__ import annotations

import json
from typing import Any

from octavo.server.answer_parts import Part, PartChange
from octavo.server.anthropic.message_words import Block, TextBlock, ThinkingBlock, ToolUseBlock
from octavo.server.output_events import CallArguments, Content, Reasoning
from octavo.server.responses import encode_json

NO_JSON = "INVALID_JSON"
"""The one field of an input that is no object: a call that was cut, or that the model got wrong. It holds its text."""
_DELTAS = {
    Content: ("text_delta", "text"),
    Reasoning: ("thinking_delta", "thinking"),
    CallArguments: ("input_json_delta", "partial_json"),
}


def block_of(part: Part) -> Block:
    """A part that has ended."""
    if part.kind is CallArguments:
        return ToolUseBlock(id=part.call_id, name=part.name, input=_input_of(part.text))
    return ThinkingBlock(thinking=part.text) if part.kind is Reasoning else TextBlock(text=part.text)


def frames_of(change: PartChange) -> bytes:
    """What is told of a change."""
    part, index = change.part, change.index
    match change.what:
        case "begins":
            empty = Part(part.kind, name=part.name, call_id=part.call_id)
            return event_frame("content_block_start", index=index, content_block=block_of(empty))
        case "grows":
            kind, field = _DELTAS[part.kind]
            return event_frame("content_block_delta", index=index, delta={"type": kind, field: change.text})
        case "ends":
            return event_frame("content_block_stop", index=index)


def event_frame(kind: str, **fields: Any) -> bytes:
    """One event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode_json({"type": kind, **fields}))


def _input_of(arguments: str) -> dict[str, Any]:
    try:
        found = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {NO_JSON: arguments}
