"""/v1/responses: one conversation, one answer, as a list of items or a stream of typed events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.server.answer_parts import PartStream
from octavo.server.api_error import ApiError, as_api_error
from octavo.server.context import ServerContext
from octavo.server.conversation import conversation_ids, text_size
from octavo.server.dialect import AnswerPlan
from octavo.server.openai.compaction import CompactRequest, compacted, summary_request
from octavo.server.openai.generation import check_stops
from octavo.server.openai.response_format import asked_shape
from octavo.server.openai.response_input import messages_of
from octavo.server.openai.response_items import ItemEvent, ResponseItems
from octavo.server.openai.response_store import ResponseStore
from octavo.server.openai.response_words import (
    DeletedResponse,
    InputTokensDetails,
    OutputItem,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseRequest,
    ResponseUsage,
    Status,
)
from octavo.server.openai.streaming import run_one
from octavo.server.output_events import Reasoning
from octavo.server.responses import JSON, EventStream, encode_json, json_response, unless_gone
from octavo.server.tool_use import ToolUse, openai_tool_use, openai_tools
from octavo.words.outputs import RequestOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

_TOOL_FIELDS = {"description": None, "parameters": None, "strict": False}
"""What an answer says of a tool whose request did not."""
_AS_THEY_ARE = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos")


class Responses:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._store = ResponseStore(context.config.response_store_bytes)

    async def create(self, request: Request) -> Response:
        """Answer a request."""
        body = await self._context.bodies.read(request, ResponseRequest)
        messages = self._messages(body)
        answer = await self._begin(body, messages)
        if not body.stream:
            whole = await unless_gone(request, answer.whole())
            return Response(self._keep(whole, [*messages, answer.message]), media_type=JSON)
        frames = self._stream(answer, messages)
        return EventStream(frames, keep_alive_s=self._context.config.sse_keep_alive_interval)

    async def compact(self, request: Request) -> Response:
        """Answer with a shorter conversation."""
        body = await self._context.bodies.read(request, CompactRequest)
        messages = self._messages(body)
        asked = summary_request(body)
        answer = await self._begin(asked, [*messages, *messages_of(asked.input)])
        whole = await unless_gone(request, answer.whole())
        return json_response(compacted(messages, answer.message["content"], whole))

    async def _begin(self, body: ResponseRequest, messages: list[dict[str, Any]]) -> _Answer:
        """The answer to a conversation."""
        context = self._context
        model = context.check_generator(body.model)
        llm, adapter = context.llm, context.adapter_of(model)
        check_unsupported(body)
        tools = response_tools(body)
        context.dialect.check(tools)
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        ids = await conversation_ids(llm, [*system, *messages], tools=tools.for_template, **template_options(body))
        plan = context.dialect.plan(ids, tools, interface="responses", is_stream=bool(body.stream))
        params = plan.applied_to(response_params(body, llm.default_sampling_params))
        answer_id = f"resp_{secrets.token_hex(16)}"
        prepared = await context.prepare({"prompt_token_ids": ids}, params, answer_id, plan, adapter)
        return _Answer(body, prepared, plan, llm, model, params, context.now)

    async def retrieve(self, request: Request) -> Response:
        """A response that was kept."""
        return Response(self._store.get(request.path_params["response_id"]).body, media_type=JSON)

    async def delete(self, request: Request) -> Response:
        """Keep a response no more."""
        response_id = request.path_params["response_id"]
        self._store.remove(response_id)
        return json_response(DeletedResponse(id=response_id))

    async def cancel(self, request: Request) -> Response:
        """Only a response in the background could be cancelled, and there is none."""
        self._store.get(request.path_params["response_id"])
        raise ApiError(400, "only responses in the background can be cancelled.", param="response_id")

    def _messages(self, body: ResponseRequest | CompactRequest) -> list[dict[str, Any]]:
        if body.previous_response_id is None:
            return messages_of(body.input)
        earlier = self._store.get(body.previous_response_id, param="previous_response_id").messages
        is_all = isinstance(body, CompactRequest) and body.input is None
        return earlier if is_all else [*earlier, *messages_of(body.input)]

    async def _stream(self, answer: _Answer, messages: list[dict[str, Any]]) -> AsyncGenerator[bytes, None]:
        events = answer.events()
        try:
            async for each in events:
                yield each
        finally:
            await events.aclose()
        if answer.final is not None:
            self._keep(answer.final, [*messages, answer.message])

    def _keep(self, response: ResponseObject, conversation: list[dict[str, Any]]) -> bytes:
        data = encode_json(response)
        if response.store:
            self._store.put(response.id, data, conversation, text_size(conversation))
        return data


class _Answer:
    """One request on its way to its answer."""

    def __init__(
        self,
        body: ResponseRequest,
        prepared: PreparedRequest,
        plan: AnswerPlan,
        llm: AsyncLLM,
        model: str,
        params: SamplingParams,
        now: Any,
    ) -> None:
        self._body = body
        self._prepared = prepared
        self._llm = llm
        self._model = model
        self._params = params
        self._now = now
        self._created = now()
        self._sequence = 0
        self._parts = PartStream(plan.reader())
        self._items = ResponseItems()
        self._num_tokens = 0
        self._last: RequestOutput | None = None
        self.final: ResponseObject | None = None

    @property
    def message(self) -> dict[str, Any]:
        """The answer as a message of its conversation."""
        return self._parts.answer.message

    async def whole(self) -> ResponseObject:
        """The answer in one piece."""
        async for output in run_one(self._llm, self._prepared, self._body.request_timeout):
            self._take(output)
        return await self._ended()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as typed events, numbered in order."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        outputs = run_one(self._llm, self._prepared, self._body.request_timeout)
        try:
            async for output in outputs:
                if events := self._take(output):
                    yield b"".join([self._event(f"response.{kind}", **fields) for kind, fields in events])
        except Exception as error:
            known = as_api_error(error)
            failure = ResponseFailure(code=known.code or known.type, message=known.message)
            yield self._event("response.failed", response=self._response("failed", error=failure))
            return
        finally:
            await outputs.aclose()
        self.final = await self._ended()
        yield self._event(f"response.{self.final.status}", response=self.final)

    def _take(self, output: RequestOutput) -> list[ItemEvent]:
        (choice,) = output.outputs
        self._last = output
        self._num_tokens += len(choice.token_ids)
        changes = self._parts.take(choice.text, is_last=choice.finish_reason is not None)
        newest = len(self._parts.answer.parts) - 1
        return [
            event
            for change in changes
            for event in self._items.events(change, self._status if change.index == newest else "completed")
        ]

    @property
    def _status(self) -> Status:
        """How the answer ends, or has ended."""
        cut = self._last is not None and self._last.outputs[0].finish_reason == "length"
        return "incomplete" if cut else "completed"

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode_json(event))

    async def _ended(self) -> ResponseObject:
        response = self._response(self._status, output=self._items.items)
        is_cut = response.status == "incomplete"
        response.completed_at = None if is_cut else self._now()
        response.incomplete_details = {"reason": "max_output_tokens"} if is_cut else None
        response.usage = self._usage(await self._num_thought_tokens())
        return response

    def _usage(self, num_thought_tokens: int) -> ResponseUsage:
        num_cached = 0 if self._last is None else self._last.num_cached_tokens
        num_prompt = len(self._prepared.choices[0].prompt_token_ids)
        return ResponseUsage(
            input_tokens=num_prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=num_cached),
            output_tokens=self._num_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=num_thought_tokens),
            total_tokens=num_prompt + self._num_tokens,
        )

    async def _num_thought_tokens(self) -> int:
        """As many as their text has: which tokens wrote it is not told."""
        thoughts = self._parts.answer.text_of(Reasoning)
        if not thoughts:
            return 0
        encode = partial(self._llm.tokenizer.encode, thoughts, add_special_tokens=False)
        return min(len(await self._llm.work_on(len(thoughts), encode)), self._num_tokens)

    def _response(
        self, status: Status, *, output: Sequence[OutputItem] = (), error: ResponseFailure | None = None
    ) -> ResponseObject:
        body, params = self._body, self._params
        return ResponseObject(
            id=self._prepared.request_id,
            created_at=self._created,
            status=status,
            error=error,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            max_tool_calls=body.max_tool_calls,
            model=self._model,
            output=list(output),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning={"effort": None, "summary": None, **(body.reasoning or {})},
            safety_identifier=body.safety_identifier,
            store=body.store is not False,
            temperature=params.temperature,
            text=body.text if body.text and "format" in body.text else {"format": {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=[{**_TOOL_FIELDS, **tool} for tool in body.tools or ()],
            top_logprobs=0,
            top_p=params.top_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            truncation=body.truncation or "disabled",
            user=body.user,
            metadata=body.metadata or {},
        )


def check_unsupported(body: ResponseRequest) -> None:
    """Refuse clearly what cannot be done."""
    if body.background:
        raise ApiError(400, "a response in the background is not possible.", param="background")
    if body.top_logprobs:
        raise ApiError(400, "top_logprobs is possible in /v1/chat/completions only.", param="top_logprobs")


def response_params(body: ResponseRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a response."""
    check_stops("stop", [body.stop] if isinstance(body.stop, str) else body.stop or [])
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise ApiError(400, "max_output_tokens must be at least 1.", param="max_output_tokens")
    given = {name: value for name in _AS_THEY_ARE if (value := getattr(body, name)) is not None}
    form = (body.text or {}).get("format")
    shape = asked_shape("text", form, body.structured_outputs)
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return defaults.clone(**given, n=1, max_tokens=body.max_output_tokens, structured_outputs=shape, output_kind=kind)


def response_tools(body: ResponseRequest) -> ToolUse:
    """What the request says of tools. Raises ApiError."""
    functions = openai_tools(body.tools, lambda tool: {key: value for key, value in tool.items() if key != "type"})
    return openai_tool_use(functions, body.tool_choice, body.parallel_tool_calls, lambda choice: choice.get("name"))


def template_options(body: ResponseRequest) -> dict[str, Any]:
    """Variables of the template that a request sets."""
    effort = (body.reasoning or {}).get("effort")
    return {} if effort is None else {"reasoning_effort": effort}
