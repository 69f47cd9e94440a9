"""/v1/responses: one conversation, one answer, as a list of items or a stream of typed events."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.server.api_error import ApiError, as_api_error
from octavo.server.context import ServerContext
from octavo.server.conversation import conversation_ids, text_size
from octavo.server.openai.generation import check_stops
from octavo.server.openai.response_format import shape_of_format
from octavo.server.openai.response_store import ResponseStore
from octavo.server.openai.response_words import (
    DeletedResponse,
    InputTokensDetails,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ResponseFailure,
    ResponseObject,
    ResponseRequest,
    ResponseUsage,
)
from octavo.server.openai.streaming import run_one
from octavo.server.responses import JSON, EventStream, encode_json, json_response, unless_gone
from octavo.words.outputs import RequestOutput
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

TEXT_PARTS = frozenset({"input_text", "output_text", "text"})
_AS_THEY_ARE = ("temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos")


class Responses:
    """The routes."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._store = ResponseStore(context.config.response_store_bytes)

    async def create(self, request: Request) -> Response:
        """Answer a request."""
        context = self._context
        body = await context.bodies.read(request, ResponseRequest)
        model = context.check_model(body.model)
        llm = context.llm
        check_unsupported(body)
        messages = self._messages(body)
        params = response_params(body, llm.default_sampling_params)
        system = [{"role": "system", "content": body.instructions}] if body.instructions else []
        ids = await conversation_ids(llm, [*system, *messages])
        answer_id, adapter = f"resp_{secrets.token_hex(16)}", context.adapter_of(model)
        prepared = await llm.prepare({"prompt_token_ids": ids}, params, answer_id, lora_request=adapter)
        answer = _Answer(body, prepared, llm, model, params, context.now)
        if not body.stream:
            whole = await unless_gone(request, answer.whole())
            return Response(self._keep(body, whole, messages), media_type=JSON)
        frames = self._stream(body, answer, messages)
        return EventStream(frames, keep_alive_s=context.config.sse_keep_alive_interval)

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

    def _messages(self, body: ResponseRequest) -> list[dict[str, Any]]:
        earlier = [] if body.previous_response_id is None else self._store.get(body.previous_response_id).messages
        return [*earlier, *messages_of(body.input)]

    async def _stream(
        self, body: ResponseRequest, answer: _Answer, messages: list[dict[str, Any]]
    ) -> AsyncGenerator[bytes, None]:
        events = answer.events()
        try:
            async for each in events:
                yield each
        finally:
            await events.aclose()
        if answer.final is not None:
            self._keep(body, answer.final, messages)

    def _keep(self, body: ResponseRequest, response: ResponseObject, messages: list[dict[str, Any]]) -> bytes:
        data = encode_json(response)
        if response.store:
            said = {"role": "assistant", "content": "".join(item.content[0].text for item in response.output)}
            conversation = [*messages, said]
            self._store.put(response.id, data, conversation, text_size(conversation))
        return data


class _Answer:
    """One request on its way to its answer."""

    def __init__(
        self,
        body: ResponseRequest,
        prepared: PreparedRequest,
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
        self._item_id = f"msg_{secrets.token_hex(16)}"
        self._sequence = 0
        self._text: list[str] = []
        self._num_tokens = 0
        self._last: RequestOutput | None = None
        self.final: ResponseObject | None = None

    async def whole(self) -> ResponseObject:
        """The answer in one piece."""
        async for output in run_one(self._llm, self._prepared, self._body.request_timeout):
            self._take(output)
        return self._ended()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The answer as typed events, numbered in order."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        yield self._event("response.output_item.added", output_index=0, item=self._message("in_progress", []))
        yield self._part_event("response.content_part.added", part=OutputText(text=""))
        outputs = run_one(self._llm, self._prepared, self._body.request_timeout)
        try:
            async for output in outputs:
                if delta := self._take(output):
                    yield self._part_event("response.output_text.delta", delta=delta, logprobs=[])
        except Exception as error:
            known = as_api_error(error)
            failure = ResponseFailure(code=known.code or known.type, message=known.message)
            yield self._event("response.failed", response=self._response("failed", error=failure))
            return
        finally:
            await outputs.aclose()
        for event in self._closing_events():
            yield event

    def _closing_events(self) -> list[bytes]:
        text = "".join(self._text)
        self.final = self._ended()
        return [
            self._part_event("response.output_text.done", text=text, logprobs=[]),
            self._part_event("response.content_part.done", part=OutputText(text=text)),
            self._event("response.output_item.done", output_index=0, item=self.final.output[0]),
            self._event(f"response.{self.final.status}", response=self.final),
        ]

    def _take(self, output: RequestOutput) -> str:
        (choice,) = output.outputs
        self._last = output
        self._text.append(choice.text)
        self._num_tokens += len(choice.token_ids)
        return choice.text

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._sequence, **fields}
        self._sequence += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), encode_json(event))

    def _part_event(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._item_id, output_index=0, content_index=0, **fields)

    def _message(self, status: Any, content: list[OutputText]) -> OutputMessage:
        return OutputMessage(id=self._item_id, status=status, content=content)

    def _ended(self) -> ResponseObject:
        cut = self._last is not None and self._last.outputs[0].finish_reason == "length"
        status = "incomplete" if cut else "completed"
        response = self._response(status, output=[self._message(status, [OutputText(text="".join(self._text))])])
        response.completed_at = None if cut else self._now()
        response.incomplete_details = {"reason": "max_output_tokens"} if cut else None
        response.usage = self._usage()
        return response

    def _usage(self) -> ResponseUsage:
        num_cached = 0 if self._last is None else self._last.num_cached_tokens
        num_prompt = len(self._prepared.choices[0].prompt_token_ids)
        return ResponseUsage(
            input_tokens=num_prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=num_cached),
            output_tokens=self._num_tokens,
            output_tokens_details=OutputTokensDetails(),
            total_tokens=num_prompt + self._num_tokens,
        )

    def _response(
        self, status: Any, *, output: list[OutputMessage] | None = None, error: ResponseFailure | None = None
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
            output=output or [],
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning={"effort": None, "summary": None},
            safety_identifier=body.safety_identifier,
            store=body.store is not False,
            temperature=params.temperature,
            text=body.text if body.text and "format" in body.text else {"format": {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            top_logprobs=0,
            top_p=params.top_p,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            truncation=body.truncation or "disabled",
            user=body.user,
            metadata=body.metadata or {},
        )


def check_unsupported(body: ResponseRequest) -> None:
    """Refuse clearly what cannot be done: this is where tools will come in."""
    if body.tools and body.tool_choice != "none":
        raise ApiError(400, "tools are not possible yet.", param="tools")
    if body.tool_choice not in (None, "none", "auto"):
        raise ApiError(400, "tool_choice can be none or auto, for now.", param="tool_choice")
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
    shape = shape_of_format(body.text["format"], "text") if body.text and "format" in body.text else None
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return defaults.clone(**given, n=1, max_tokens=body.max_output_tokens, structured_outputs=shape, output_kind=kind)


def messages_of(given: Any) -> list[dict[str, Any]]:
    """The items of ``input`` as messages. Raises ApiError for items that cannot be served."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "input must be text or a non-empty list of items.", param="input")
    return [message for index, item in enumerate(given) for message in _message_of(item, f"input[{index}]")]


def _message_of(item: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(item, Mapping):
        raise ApiError(400, f"{where} must be an object.", param="input")
    kind = item.get("type", "message")
    if kind == "reasoning":  # thoughts of an earlier answer: templates leave them out
        return []
    if kind != "message":
        raise ApiError(400, f"{where}: an item of type {kind!r:.60} is not possible yet.", param="input")
    content = item.get("content")
    if isinstance(content, list):
        content = [_text_part(part, where) for part in content]
    return [{"role": item.get("role"), "content": content}]


def _text_part(part: Any, where: str) -> dict[str, Any]:
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind not in TEXT_PARTS:
        raise ApiError(400, f"{where}: content of type {kind!r:.60} is not possible; use input_text.", param="input")
    return {"type": "text", "text": part.get("text")}
