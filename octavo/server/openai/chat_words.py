"""What a chat completion is made of: the request's body, the answer, and the chunks of its stream."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.server.openai.generation import FINGERPRINT, GenerationRequest, Timings, Usage
from octavo.words.outputs import Logprob

MESSAGE_KEYS = frozenset(
    {
        "role", "content", "name", "tool_calls", "tool_call_id", "function_call", "refusal", "audio", "annotations",
        "reasoning_content", "reasoning", "thinking",
    }
)  # fmt: skip


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """The body of a request."""

    model: str
    messages: Any
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: list[str] | None = None
    store: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    verbosity: str | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None

    echo: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class ShownToken(msgspec.Struct, kw_only=True):
    """A token with its log-probability, its text and its bytes."""

    token: str
    logprob: float
    bytes: list[int]


class ShownPosition(ShownToken, kw_only=True):
    """A token that was chosen, and the likeliest ones in its place."""

    top_logprobs: list[ShownToken]


class ChatLogprobs(msgspec.Struct, kw_only=True):
    """One entry per token of the answer."""

    content: list[ShownPosition]
    refusal: None = None


class CalledFunction(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A function by its name, and its arguments as JSON text; in a stream what is new of them."""

    name: str | msgspec.UnsetType = msgspec.UNSET
    arguments: str


class ToolCall(msgspec.Struct, kw_only=True):
    """A call that the model asks for."""

    id: str
    type: str = "function"
    function: CalledFunction


class ToolCallDelta(msgspec.Struct, kw_only=True):
    """What is new of the call with this index; id and name come once."""

    index: int
    id: str | msgspec.UnsetType = msgspec.UNSET
    type: str | msgspec.UnsetType = msgspec.UNSET
    function: CalledFunction


class ChatMessage(msgspec.Struct, kw_only=True):
    """An answer."""

    role: str = "assistant"
    content: str | None
    refusal: str | None = None
    annotations: list[Any] = []
    reasoning_content: str | msgspec.UnsetType = msgspec.UNSET
    tool_calls: list[ToolCall] | msgspec.UnsetType = msgspec.UNSET


class ChatChoice(msgspec.Struct, kw_only=True):
    """One answer among n."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatCompletion(msgspec.Struct, kw_only=True):
    """The whole answer."""

    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str = FINGERPRINT
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[int, Logprob] | None] | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | None | msgspec.UnsetType = msgspec.UNSET


class Delta(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is new of a message."""

    role: str | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCallDelta] = []

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.role or self.content or self.reasoning_content or self.tool_calls)


class ChatChunkChoice(msgspec.Struct, kw_only=True):
    """What is new of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None | msgspec.UnsetType = msgspec.UNSET
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET


class ChatChunk(msgspec.Struct, kw_only=True):
    """One event of a stream."""

    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str = FINGERPRINT
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    timings: Timings | None | msgspec.UnsetType = msgspec.UNSET
