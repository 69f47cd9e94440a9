"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.server.api_error import ApiError, as_api_error
from octavo.server.context import ServerContext
from octavo.server.conversation import conversation_ids
from octavo.server.openai.generation import check_stops
from octavo.server.openai.streaming import run_one
from octavo.server.responses import EventStream, anthropic_type, encode_json, json_response, unless_gone
from octavo.words.outputs import CompletionOutput, RequestOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """A conversation whose tokens are counted."""

    model: str
    messages: list[dict[str, Any]]
    system: Any = None
    tools: list[Any] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None


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
    output_config: dict[str, Any] | None = None

    seed: int | None = None
    ignore_eos: bool | None = None
    request_timeout: float | None = None


class TextBlock(msgspec.Struct, kw_only=True):
    """Text of an answer."""

    type: str = "text"
    text: str
    citations: None = None


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
    content: list[TextBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    stop_details: None = None
    container: None = None
    usage: MessageUsage


class TokenCount(msgspec.Struct, kw_only=True):
    """Tokens of a conversation."""

    input_tokens: int


class Messages:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Answer a request."""
        context = self._context
        body = await context.bodies.read(request, MessageRequest)
        model = context.check_model(body.model)
        llm = context.llm
        params = message_params(body, llm.default_sampling_params)
        ids = await self._ids(body)
        answer_id, adapter = f"msg_{secrets.token_hex(16)}", context.adapter_of(model)
        prepared = await llm.prepare({"prompt_token_ids": ids}, params, answer_id, lora_request=adapter)
        answer = _Answer(body, prepared, llm, model)
        if not body.stream:
            return json_response(await unless_gone(request, answer.whole()))
        return EventStream(answer.events(), keep_alive_s=context.config.sse_keep_alive_interval)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens that a conversation would have."""
        body = await self._context.bodies.read(request, CountTokensRequest)
        self._context.check_model(body.model)
        return json_response(TokenCount(input_tokens=len(await self._ids(body))))

    async def _ids(self, body: CountTokensRequest) -> list[int]:
        check_unsupported(body)
        messages = chat_messages(body)
        return await conversation_ids(self._context.llm, messages, continues=messages[-1]["role"] == "assistant")


class _Answer:
    """One request on its way to its answer."""

    def __init__(self, body: MessageRequest, prepared: PreparedRequest, llm: AsyncLLM, model: str) -> None:
        self._body = body
        self._prepared = prepared
        self._llm = llm
        self._model = model
        self._num_tokens = 0

    async def whole(self) -> MessageObject:
        """The answer in one piece."""
        async for output in self._outputs():
            self._num_tokens += len(output.outputs[0].token_ids)
        (choice,) = output.outputs
        reason, sequence = stop_of(choice)
        return self._message([TextBlock(text=choice.text)], self._usage(output.num_cached_tokens), reason, sequence)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as typed events."""
        outputs = self._outputs()
        is_first = True
        try:
            async for output in outputs:
                (choice,) = output.outputs
                frames = [self._opening(output)] if is_first else []
                is_first = False
                self._num_tokens += len(choice.token_ids)
                if choice.text:
                    delta = {"type": "text_delta", "text": choice.text}
                    frames.append(_event("content_block_delta", index=0, delta=delta))
                if output.finished:
                    frames.append(self._closing(output, choice))
                yield b"".join(frames)
        except Exception as error:
            known = as_api_error(error)
            yield _event("error", error={"type": anthropic_type(known), "message": known.message})
        finally:
            await outputs.aclose()

    def _outputs(self) -> AsyncGenerator[RequestOutput, None]:
        return run_one(self._llm, self._prepared, self._body.request_timeout)

    def _opening(self, output: RequestOutput) -> bytes:
        message = self._message([], self._usage(output.num_cached_tokens), None, None)
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event("content_block_start", index=0, content_block=block)

    def _closing(self, output: RequestOutput, choice: CompletionOutput) -> bytes:
        reason, sequence = stop_of(choice)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        return b"".join(
            [
                _event("content_block_stop", index=0),
                _event("message_delta", delta=delta, usage=self._usage(output.num_cached_tokens)),
                _event("message_stop"),
            ]
        )

    def _message(
        self, content: list[TextBlock], usage: MessageUsage, reason: StopReason | None, sequence: str | None
    ) -> MessageObject:
        return MessageObject(
            id=self._prepared.request_id,
            model=self._model,
            content=content,
            stop_reason=reason,
            stop_sequence=sequence,
            usage=usage,
        )

    def _usage(self, num_cached_tokens: int) -> MessageUsage:
        num_prompt = len(self._prepared.choices[0].prompt_token_ids)
        return MessageUsage(
            input_tokens=num_prompt - num_cached_tokens,
            output_tokens=self._num_tokens,
            cache_read_input_tokens=num_cached_tokens,
        )


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode_json({"type": kind, **fields}))


def stop_of(choice: CompletionOutput) -> tuple[StopReason, str | None]:
    """Why the answer ended, in Anthropic's words."""
    if choice.finish_reason == "length":
        return "max_tokens", None
    if isinstance(choice.stop_reason, str):
        return "stop_sequence", choice.stop_reason
    return "end_turn", None


def message_params(body: MessageRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a message."""
    check_stops("stop_sequences", body.stop_sequences or [])
    names = ("temperature", "top_p", "top_k", "seed", "ignore_eos")
    given = {name: value for name in names if (value := getattr(body, name)) is not None}
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return defaults.clone(**given, n=1, max_tokens=body.max_tokens, stop=body.stop_sequences or None, output_kind=kind)


def check_unsupported(body: CountTokensRequest) -> None:
    """Refuse clearly what cannot be done: this is where tools will come in."""
    if body.tools and (body.tool_choice or {}).get("type") != "none":
        raise ApiError(400, "tools are not possible yet.", param="tools")


def chat_messages(body: CountTokensRequest) -> list[dict[str, Any]]:
    """The conversation with its system text first. Raises ApiError for blocks that cannot be served."""
    if not body.messages:
        raise ApiError(400, "messages must not be empty.", param="messages")
    system = [] if not body.system else [{"role": "system", "content": _text_of(body.system, "system")}]
    return [*system, *(_chat_message(each, f"messages[{i}]") for i, each in enumerate(body.messages))]


def _chat_message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ("user", "assistant", "system"):
        raise ApiError(400, f"{where}.role must be user or assistant.", param="messages")
    return {"role": role, "content": _text_of(message.get("content"), f"{where}.content")}


def _text_of(content: Any, where: str) -> str:
    """Text, or the texts of a list of blocks; earlier thoughts are left out."""
    param = where.split("[")[0].split(".")[0]
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise ApiError(400, f"{where} must be text or a non-empty list of blocks.", param=param)
    texts = []
    for block in content:
        kind = block.get("type") if isinstance(block, Mapping) else None
        if kind in ("thinking", "redacted_thinking"):
            continue
        if kind != "text" or not isinstance(block.get("text"), str):
            raise ApiError(400, f"{where}: a block of type {kind!r:.60} is not possible yet.", param=param)
        texts.append(block["text"])
    return "\n".join(texts)
