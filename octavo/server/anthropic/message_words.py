"""What /v1/messages takes and gives, as data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    model: str
    messages: list[dict[str, Any]]
    system: Any = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None


class MessageRequest(CountTokensRequest, kw_only=True):
    """The body of a request."""

    max_tokens: int
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    container: str | None = None
    context_management: dict[str, Any] | None = None

    seed: int | None = None
    ignore_eos: bool | None = None
    structured_outputs: Any = None
    request_timeout: float | None = None


class TextBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="text"):
    """Text of an answer."""

    text: str
    citations: None = None


class ThinkingBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="thinking"):
    """Thoughts; nobody signs them."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, kw_only=True, tag_field="type", tag="tool_use"):
    """A call that the model asks for."""

    id: str
    name: str
    input: dict[str, Any]
    caller: dict[str, str] = msgspec.field(default_factory=lambda: {"type": "direct"})


Block: TypeAlias = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, kw_only=True):
    """Token counts; ``input_tokens`` are those that were not found in the prefix cache."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_creation: None = None
    output_tokens_details: None = None
    inference_geo: None = None
    server_tool_use: None = None
    service_tier: str = "standard"


class MessageObject(msgspec.Struct, kw_only=True):
    """The answer."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[Block]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None = None
    container: None = None
    usage: MessageUsage


class TokenCount(msgspec.Struct, kw_only=True):
    """Tokens of a conversation."""

    input_tokens: int
