"""What /v1/responses takes and gives, as data."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseRequest(msgspec.Struct, kw_only=True):
    """The body of a request. ``input`` is a text or a list of items; ``store`` keeps the answer for a while."""

    model: str
    input: Any
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    top_logprobs: int | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = None
    store: bool | None = None
    background: bool | None = None
    text: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None
    truncation: Literal["auto", "disabled"] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    metadata: dict[str, Any] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    structured_outputs: Any = None
    request_timeout: float | None = None


class OutputText(msgspec.Struct, kw_only=True):
    """Text of an answer."""

    type: str = "output_text"
    text: str
    annotations: list[Any] = []
    logprobs: list[Any] = []


class OutputMessage(msgspec.Struct, kw_only=True, tag_field="type", tag="message"):
    """Text that the model answers with."""

    id: str
    status: Status
    role: str = "assistant"
    content: list[OutputText]


class ReasoningText(msgspec.Struct, kw_only=True):
    """Text of thoughts."""

    type: str = "reasoning_text"
    text: str


class ReasoningItem(msgspec.Struct, kw_only=True, tag_field="type", tag="reasoning"):
    """Thoughts."""

    id: str
    status: Status
    summary: list[Any] = []
    content: list[ReasoningText]


class FunctionCall(msgspec.Struct, kw_only=True, tag_field="type", tag="function_call"):
    """A call that the model asks for; ``arguments`` is JSON text."""

    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


OutputItem: TypeAlias = OutputMessage | ReasoningItem | FunctionCall


class InputTokensDetails(msgspec.Struct, kw_only=True):
    """Input tokens that were found in the prefix cache."""

    cached_tokens: int


class OutputTokensDetails(msgspec.Struct, kw_only=True):
    """Output tokens that were thoughts."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct, kw_only=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseFailure(msgspec.Struct, kw_only=True):
    """Why a response failed."""

    code: str
    message: str


class ResponseObject(msgspec.Struct, kw_only=True):
    """The answer, with what was asked."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: Status
    background: bool = False
    error: ResponseFailure | None = None
    incomplete_details: dict[str, str] | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: str = "default"
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[Any] = []
    top_logprobs: int
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    truncation: str
    usage: ResponseUsage | None = None
    user: str | None
    metadata: dict[str, Any]


class DeletedResponse(msgspec.Struct, kw_only=True):
    """A response that is kept no more."""

    id: str
    object: str = "response"
    deleted: bool = True
