"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.server.answer_parts import Part, PartsOfAnswer
from octavo.server.context import ServerContext, request_id_of
from octavo.server.dialect import AnswerPlan, AnswerReader
from octavo.server.openai.chat_input import chat_params, chat_prompt, chat_tools, check_unsupported
from octavo.server.openai.chat_words import (
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatLogprobs,
    ChatMessage,
    Delta,
    ShownPosition,
    ShownToken,
    ToolCall,
    ToolCallDelta,
)
from octavo.server.openai.generation import (
    LOWEST_LOGPROB,
    Timings,
    TokenNames,
    Usage,
    UsageCounter,
)
from octavo.server.openai.streaming import ended, frame, run_one
from octavo.server.output_events import CallArguments, CallBegins, Content, Reasoning
from octavo.server.responses import EventStream, json_response, unless_gone
from octavo.words.outputs import CompletionOutput, Logprob, RequestOutput


class ChatCompletions:
    """The route."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Answer a chat completion request."""
        context = self._context
        body = await context.bodies.read(request, ChatCompletionRequest)
        model = context.check_generator(body.model)
        llm, adapter = context.llm, context.adapter_of(model)
        check_unsupported(body)
        tools = chat_tools(body)
        context.dialect.check(tools)
        prompt = await chat_prompt(body, context, tools)
        plan = context.dialect.plan(
            prompt["prompt_token_ids"], tools, interface="chat_completions", is_stream=bool(body.stream)
        )
        params = plan.applied_to(chat_params(body, llm.default_sampling_params))
        answer_id = f"chatcmpl-{body.request_id or request_id_of(request)}"
        prepared = await context.prepare(prompt, params, answer_id, plan, adapter, priority=body.priority)
        answer = _Answer(body, prepared, plan, llm, model, context)
        if not body.stream:
            return json_response(await unless_gone(request, answer.whole()))
        return EventStream(ended(answer.chunks()), keep_alive_s=context.config.sse_keep_alive_interval)


class _Answer:
    """One request on its way to its answer."""

    def __init__(
        self,
        body: ChatCompletionRequest,
        prepared: PreparedRequest,
        plan: AnswerPlan,
        llm: AsyncLLM,
        model: str,
        context: ServerContext,
    ) -> None:
        self._body = body
        self._prepared = prepared
        self._plan = plan
        self._is_plain = plan.is_plain
        self._llm = llm
        self._model = model
        self._forces_usage = context.config.enable_force_include_usage
        self._created = context.now()
        self._names = TokenNames(llm.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._usage = UsageCounter()
        self._choices: dict[int, _ChoiceText] = {}

    async def whole(self) -> ChatCompletion:
        """The answer in one piece."""
        async for output in self._outputs():
            self._usage.add(output)
        body = self._body
        return ChatCompletion(
            id=self._prepared.request_id,
            created=self._created,
            model=self._model,
            choices=[self._choice(choice) for choice in output.outputs],
            usage=self._usage.usage,
            prompt_token_ids=output.prompt_token_ids if body.return_token_ids else msgspec.UNSET,
            prompt_logprobs=msgspec.UNSET if body.prompt_logprobs is None else output.prompt_logprobs or [],
            timings=Timings.of(output.metrics) if body.return_timings else msgspec.UNSET,
        )

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer as it comes, one frame for each output."""
        with_usage, continuous = self._body.usage_in_stream(is_forced=self._forces_usage)
        outputs = self._outputs()
        try:
            async for output in outputs:
                self._usage.add(output)
                usage = self._usage.usage if continuous else None if with_usage else msgspec.UNSET
                yield b"".join([self._frame(output, choice, usage) for choice in output.outputs])
        finally:
            await outputs.aclose()
        if with_usage or self._body.return_timings:
            usage = self._usage.usage if with_usage else msgspec.UNSET
            timings = Timings.of(output.metrics) if self._body.return_timings else msgspec.UNSET
            yield frame(self._chunk([], usage=usage, timings=timings))

    def _outputs(self) -> AsyncGenerator[RequestOutput, None]:
        return run_one(self._llm, self._prepared, self._body.request_timeout)

    def _frame(self, output: RequestOutput, choice: CompletionOutput, usage: Usage | None | msgspec.UnsetType) -> bytes:
        is_first = choice.index not in self._choices
        delta = self._delta(choice)
        says_more = choice.finish_reason is not None or self._body.logprobs or self._body.return_token_ids
        if delta.is_empty and not self._is_plain and not says_more:
            return b""
        shown = ChatChunkChoice(index=choice.index, delta=delta, finish_reason=self._reason(choice))
        if self._body.logprobs:
            shown.logprobs = self._logprobs(choice)
        if choice.finish_reason is not None:
            shown.stop_reason = choice.stop_reason
        if self._body.return_token_ids:
            shown.token_ids = choice.token_ids
        chunk = self._chunk([shown], usage=usage)
        if is_first and self._body.return_token_ids:
            chunk.prompt_token_ids = output.prompt_token_ids
        return frame(chunk)

    def _delta(self, choice: CompletionOutput) -> Delta:
        role = None if choice.index in self._choices else "assistant"
        delta = self._text(choice.index).take(choice)
        delta.role = role
        if self._is_plain or (role and not delta.reasoning_content):
            delta.content = delta.content or ""
        return delta

    def _text(self, index: int) -> _ChoiceText:
        if index not in self._choices:
            self._choices[index] = _ChoiceText(self._plan.reader(), self._body.include_reasoning is not False)
        return self._choices[index]

    def _reason(self, choice: CompletionOutput) -> str | None:
        return self._plan.finish_reason(choice.finish_reason, self._text(choice.index).num_calls)

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        *,
        usage: Usage | None | msgspec.UnsetType,
        timings: Timings | None | msgspec.UnsetType = msgspec.UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self._prepared.request_id,
            created=self._created,
            model=self._model,
            choices=choices,
            usage=usage,
            timings=timings,
        )

    def _choice(self, choice: CompletionOutput) -> ChatChoice:
        text = self._text(choice.index)
        text.take(choice)
        return ChatChoice(
            index=choice.index,
            message=text.message,
            logprobs=self._logprobs(choice) if self._body.logprobs else None,
            finish_reason=self._reason(choice),
            stop_reason=choice.stop_reason,
            token_ids=choice.token_ids if self._body.return_token_ids else msgspec.UNSET,
        )

    def _logprobs(self, choice: CompletionOutput) -> ChatLogprobs:
        pairs = zip(choice.token_ids, choice.logprobs or (), strict=True)
        return ChatLogprobs(content=[self._position(token_id, position) for token_id, position in pairs])

    def _position(self, token_id: int, position: Mapping[int, Logprob]) -> ShownPosition:
        most = self._body.top_logprobs or 0
        best = [(each, found) for each, found in position.items() if found.rank is not None and found.rank <= most]
        return ShownPosition(
            **self._token(token_id, position[token_id]),
            top_logprobs=[ShownToken(**self._token(each, found)) for each, found in best[:most]],
        )

    def _token(self, token_id: int, found: Logprob) -> dict[str, Any]:
        return {
            "token": self._names.name(token_id, found),
            "logprob": max(found.logprob, LOWEST_LOGPROB),
            "bytes": self._names.raw(token_id),
        }


class _ChoiceText:
    """The text of one choice as thoughts, content and calls. What is whole is the fold of what is streamed."""

    def __init__(self, reader: AnswerReader, shows_thoughts: bool) -> None:
        self._reader = reader
        self._shows_thoughts = shows_thoughts
        self._parts = PartsOfAnswer()
        self.num_calls = 0

    def take(self, choice: CompletionOutput) -> Delta:
        """More text; what is new by it."""
        delta = Delta()
        for event in self._reader.take(choice.text, is_last=choice.finish_reason is not None):
            if isinstance(event, Reasoning) and not self._shows_thoughts:
                continue
            part, is_new = self._parts.add(event)
            match event:
                case Reasoning(text):
                    delta.reasoning_content = (delta.reasoning_content or "") + text
                case Content(text):
                    delta.content = (delta.content or "") + text
                case _:
                    self._add_call(delta, part, event, is_new)
        return delta

    def _add_call(self, delta: Delta, part: Part, event: CallBegins | CallArguments, is_new: bool) -> None:
        if is_new:
            self.num_calls += 1
            function = CalledFunction(name=part.name, arguments="")
            new = ToolCallDelta(index=self.num_calls - 1, id=part.call_id, type="function", function=function)
            delta.tool_calls = [*delta.tool_calls, new]
        if isinstance(event, CallArguments):
            if not delta.tool_calls:
                delta.tool_calls = [ToolCallDelta(index=self.num_calls - 1, function=CalledFunction(arguments=""))]
            delta.tool_calls[-1].function.arguments += event.text

    @property
    def message(self) -> ChatMessage:
        """The whole of it."""
        parts, calls = self._parts, self._parts.calls
        thoughts, content = parts.text_of(Reasoning), parts.text_of(Content)
        shown = [
            ToolCall(id=call.call_id, function=CalledFunction(name=call.name, arguments=call.text)) for call in calls
        ]
        return ChatMessage(
            content="" if content is None and thoughts is None and not calls else content,
            reasoning_content=msgspec.UNSET if thoughts is None else thoughts,
            tool_calls=shown or msgspec.UNSET,
        )
