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
from octavo.server.api_error import ApiError
from octavo.server.context import ServerContext, request_id_of
from octavo.server.conversation import conversation_ids
from octavo.server.dialect import AnswerPlan, AnswerReader
from octavo.server.openai.generation import (
    FINGERPRINT,
    LOWEST_LOGPROB,
    GenerationRequest,
    Timings,
    TokenNames,
    Usage,
    UsageCounter,
    sampling_params,
    truncated,
)
from octavo.server.openai.response_format import asked_shape
from octavo.server.openai.streaming import ended, frame, run_one
from octavo.server.output_events import CallArguments, CallBegins, Content, Reasoning
from octavo.server.responses import EventStream, json_response, unless_gone
from octavo.server.tool_use import ToolUse, openai_tool_use, openai_tools
from octavo.words.inputs import TokensPrompt
from octavo.words.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.words.sampling_params import SamplingParams

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
    response_format: Any = None
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


class ChatCompletions:
    """The route."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Answer a chat completion request."""
        context = self._context
        body = await context.bodies.read(request, ChatCompletionRequest)
        model = context.check_model(body.model)
        llm, adapter = context.llm, context.adapter_of(model)
        check_unsupported(body)
        tools = chat_tools(body)
        context.dialect.check(tools)
        prompt = await chat_prompt(body, context, tools)
        plan = context.dialect.plan(prompt["prompt_token_ids"], tools)
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
            self._choices[index] = _ChoiceText(self._plan.reader())
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

    def __init__(self, reader: AnswerReader) -> None:
        self._reader = reader
        self._parts = PartsOfAnswer()
        self.num_calls = 0

    def take(self, choice: CompletionOutput) -> Delta:
        """More text; what is new by it."""
        delta = Delta()
        for event in self._reader.take(choice.text, is_last=choice.finish_reason is not None):
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


def check_unsupported(body: ChatCompletionRequest) -> None:
    """Refuse clearly what cannot be done."""
    if body.functions:
        raise ApiError(400, "functions are not possible; use tools.", param="functions")
    if body.modalities not in (None, ["text"]):
        raise ApiError(400, 'modalities can be ["text"] only.', param="modalities")
    if body.echo:
        raise ApiError(400, "echo is not possible in a chat; use /v1/completions.", param="echo")
    if body.chat_template is not None:
        raise ApiError(400, "a chat_template is not taken from a request.", param="chat_template")


def chat_tools(body: ChatCompletionRequest) -> ToolUse:
    """What the request says of tools. Raises ApiError."""
    functions = openai_tools(body.tools, lambda tool: tool.get("function"))
    return openai_tool_use(functions, body.tool_choice, body.parallel_tool_calls, _named_function)


def _named_function(choice: Mapping[str, Any]) -> Any:
    function = choice.get("function")
    return function.get("name") if isinstance(function, Mapping) else None


async def chat_prompt(body: ChatCompletionRequest, context: ServerContext, tools: ToolUse) -> TokensPrompt:
    """The conversation as tokens. Raises RequestError naming the message that is wrong."""
    llm = context.llm
    keys: set[str] = set()
    if isinstance(body.messages, list):
        keys.update(*(message for message in body.messages if isinstance(message, dict)))
    context.bodies.warn_of(f"messages[].{key}" for key in keys - MESSAGE_KEYS)
    ids = await conversation_ids(
        llm,
        body.messages,
        tools=tools.for_template,
        continues=bool(body.continue_final_message),
        adds=body.add_generation_prompt,
        **template_options(body),
    )
    prompt: TokensPrompt = {"prompt_token_ids": truncated(ids, body, llm.info.max_model_len)}
    if body.cache_salt is not None:
        prompt["cache_salt"] = body.cache_salt
    return prompt


def template_options(body: ChatCompletionRequest) -> dict[str, Any]:
    """Variables of the template that a request sets; reserved names are refused before they could be arguments."""
    options = dict(body.chat_template_kwargs or {})
    reserved = {"tools", "messages", "add_generation_prompt", "continue_final_message", "self"} & options.keys()
    if reserved:
        names = ", ".join(sorted(reserved))
        raise ApiError(400, f"chat_template_kwargs may not hold {names}.", param="chat_template_kwargs")
    if body.reasoning_effort is not None:
        options.setdefault("reasoning_effort", body.reasoning_effort)
    return options


def chat_params(body: ChatCompletionRequest, defaults: SamplingParams) -> SamplingParams:
    """Sampling parameters of a chat; ``max_completion_tokens`` goes before ``max_tokens``, its old name."""
    if body.top_logprobs is not None and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
    if (body.top_logprobs or 0) < 0:
        raise ApiError(400, "top_logprobs must be at least 0.", param="top_logprobs")
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    if most is not None and most < 1:
        raise ApiError(400, f"{name} must be at least 1.", param=name)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    own: dict[str, Any] = {"max_tokens": most, "logprobs": logprobs}
    if body.response_format is not None:
        own["structured_outputs"] = asked_shape("response_format", body.response_format, body.structured_outputs)
    return sampling_params(body, defaults, **own)
