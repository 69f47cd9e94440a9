"""/v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.server.answer_parts import PartStream
from octavo.server.anthropic.message_blocks import block_of, event_frame, frames_of
from octavo.server.anthropic.message_input import chat_messages, message_tools, thinking_budget, thinking_options
from octavo.server.anthropic.message_words import (
    CountTokensRequest,
    MessageObject,
    MessageRequest,
    MessageUsage,
    StopReason,
    TokenCount,
)
from octavo.server.api_error import as_api_error
from octavo.server.context import ServerContext
from octavo.server.conversation import conversation_ids
from octavo.server.dialect import AnswerPlan
from octavo.server.openai.generation import check_stops
from octavo.server.openai.response_format import asked_shape
from octavo.server.openai.streaming import run_one
from octavo.server.responses import EventStream, anthropic_type, json_response, unless_gone
from octavo.server.tool_use import ToolUse
from octavo.words.outputs import CompletionOutput, RequestOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams


class Messages:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Answer a request."""
        context = self._context
        body = await context.bodies.read(request, MessageRequest)
        model = context.check_generator(body.model)
        llm, adapter = context.llm, context.adapter_of(model)
        tools = message_tools(body)
        ids = await self._ids(body, tools)
        plan = context.dialect.plan(ids, tools, is_stream=bool(body.stream))
        params = plan.applied_to(message_params(body, llm.default_sampling_params))
        if context.dialect.style is not None:
            params = params.clone(thinking_token_budget=thinking_budget(body))
        answer_id = f"msg_{secrets.token_hex(16)}"
        prepared = await context.prepare({"prompt_token_ids": ids}, params, answer_id, plan, adapter)
        answer = _Answer(body, prepared, plan, llm, model)
        if not body.stream:
            return json_response(await unless_gone(request, answer.whole()))
        return EventStream(answer.events(), keep_alive_s=context.config.sse_keep_alive_interval)

    async def count_tokens(self, request: Request) -> Response:
        """Count the tokens that a conversation would have."""
        body = await self._context.bodies.read(request, CountTokensRequest)
        self._context.check_model(body.model)
        return json_response(TokenCount(input_tokens=len(await self._ids(body, message_tools(body)))))

    async def _ids(self, body: CountTokensRequest, tools: ToolUse) -> list[int]:
        self._context.dialect.check(tools)
        messages = chat_messages(body)
        return await conversation_ids(
            self._context.llm,
            messages,
            tools=tools.for_template,
            continues=messages[-1]["role"] == "assistant",
            **thinking_options(body),
        )


class _Answer:
    """One request on its way to its answer."""

    def __init__(
        self, body: MessageRequest, prepared: PreparedRequest, plan: AnswerPlan, llm: AsyncLLM, model: str
    ) -> None:
        self._body = body
        self._prepared = prepared
        self._llm = llm
        self._model = model
        self._parts = PartStream(plan.reader(), id_prefix="toolu_")
        self._num_tokens = 0

    async def whole(self) -> MessageObject:
        """The answer in one piece."""
        async for output in self._outputs():
            self._num_tokens += len(output.outputs[0].token_ids)
        (choice,) = output.outputs
        self._parts.take(choice.text, is_last=True)
        return self._message(output, *self._stop_of(choice))

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as typed events."""
        outputs = self._outputs()
        is_first = True
        try:
            async for output in outputs:
                (choice,) = output.outputs
                frames = [event_frame("message_start", message=self._message(output, None, None))] if is_first else []
                is_first = False
                self._num_tokens += len(choice.token_ids)
                frames += map(frames_of, self._parts.take(choice.text, is_last=output.finished))
                if output.finished:
                    frames += self._closing(output, choice)
                if frames:
                    yield b"".join(frames)
        except Exception as error:
            known = as_api_error(error)
            yield event_frame("error", error={"type": anthropic_type(known), "message": known.message})
        finally:
            await outputs.aclose()

    def _outputs(self) -> AsyncGenerator[RequestOutput, None]:
        return run_one(self._llm, self._prepared, self._body.request_timeout)

    def _closing(self, output: RequestOutput, choice: CompletionOutput) -> list[bytes]:
        reason, sequence = self._stop_of(choice)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        told = event_frame("message_delta", delta=delta, usage=self._usage(output.num_cached_tokens))
        return [told, event_frame("message_stop")]

    def _stop_of(self, choice: CompletionOutput) -> tuple[StopReason, str | None]:
        """Why the answer ended, in Anthropic's words."""
        if choice.finish_reason == "length":
            return "max_tokens", None
        if isinstance(choice.stop_reason, str):
            return "stop_sequence", choice.stop_reason
        return "tool_use" if self._parts.answer.calls else "end_turn", None

    def _message(self, output: RequestOutput, reason: StopReason | None, sequence: str | None) -> MessageObject:
        return MessageObject(
            id=self._prepared.request_id,
            model=self._model,
            content=[block_of(part) for part in self._parts.answer.parts],
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage(output.num_cached_tokens),
        )

    def _usage(self, num_cached_tokens: int) -> MessageUsage:
        num_prompt = len(self._prepared.choices[0].prompt_token_ids)
        return MessageUsage(
            input_tokens=num_prompt - num_cached_tokens,
            output_tokens=self._num_tokens,
            cache_read_input_tokens=num_cached_tokens,
        )


def message_params(body: MessageRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a message."""
    check_stops("stop_sequences", body.stop_sequences or [])
    names = ("temperature", "top_p", "top_k", "seed", "ignore_eos")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(body, name)) is not None}
    given["structured_outputs"] = asked_shape(
        "output_config.format", (body.output_config or {}).get("format"), body.structured_outputs
    )
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return defaults.clone(**given, n=1, max_tokens=body.max_tokens, stop=body.stop_sequences or None, output_kind=kind)
