"""/v1/completions: prompts as text or token ids, echoed on request; ``max_tokens`` 0 only scores them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.input_processor import PreparedRequest
from octavo.frontend.prompt_embeds import decode_embeds
from octavo.server.api_error import ApiError
from octavo.server.context import ServerContext, request_id_of
from octavo.server.openai.generation import (
    FINGERPRINT,
    LOWEST_LOGPROB,
    GenerationRequest,
    Timings,
    TokenNames,
    Usage,
    UsageCounter,
    merged_metrics,
    sampling_params,
    truncated,
)
from octavo.server.openai.streaming import ended, frame, run_all
from octavo.server.responses import EventStream, json_response, unless_gone
from octavo.words.errors import RequestError
from octavo.words.inputs import EmbedsPrompt, PromptType, TokensPrompt
from octavo.words.outputs import CompletionOutput, Logprob, RequestOutput
from octavo.words.sampling_params import SamplingParams

MAX_PROMPTS = 4096

Position = Mapping[int, Logprob] | None


class CompletionRequest(GenerationRequest, kw_only=True):
    """The body of a request. ``prompt``: text, a list of texts, token ids, or a list of lists of token ids; or else
    ``prompt_embeds``: base64 of an .npy file or of safetensors, or a list of these."""

    prompt: Any = None
    prompt_embeds: str | list[str] | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


class CompletionLogprobs(msgspec.Struct, kw_only=True):
    """Parallel lists over the tokens that are shown; an echoed prompt's first token has no log-probability."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []


class CompletionChoice(msgspec.Struct, kw_only=True):
    """One answer, or what is new of it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_token_ids: list[int] | msgspec.UnsetType = msgspec.UNSET
    prompt_logprobs: list[dict[int, Logprob] | None] | msgspec.UnsetType = msgspec.UNSET


class Completion(msgspec.Struct, kw_only=True):
    """The answer, or a chunk of its stream."""

    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None | msgspec.UnsetType = msgspec.UNSET
    system_fingerprint: str = FINGERPRINT
    timings: Timings | None | msgspec.UnsetType = msgspec.UNSET


class Completions:
    """The route."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def create(self, request: Request) -> Response:
        """Answer a completion request."""
        body = await self._context.bodies.read(request, CompletionRequest)
        model = self._context.check_model(body.model)
        llm = self._context.llm
        answer = _Answer(body, llm, f"cmpl-{body.request_id or request_id_of(request)}", model, self._context)
        prepared = await answer.prepare()
        if not body.stream:
            return json_response(await unless_gone(request, answer.whole(prepared)))
        keep_alive_s = self._context.config.sse_keep_alive_interval
        return EventStream(ended(answer.chunks(prepared)), keep_alive_s=keep_alive_s)


class _Answer:
    """One request on its way to its answer."""

    def __init__(
        self, body: CompletionRequest, llm: AsyncLLM, answer_id: str, model: str, context: ServerContext
    ) -> None:
        self._body = body
        self._llm = llm
        self._id = answer_id
        self._model = model
        self._context = context
        self._created = context.now()
        self._names = TokenNames(llm.tokenizer, as_ids=bool(body.return_tokens_as_token_ids))
        self._only_scores = body.max_tokens == 0
        self._echoes = bool(body.echo)
        self._n = body.n or 1
        self._offsets: dict[int, int] = {}
        self._usage = UsageCounter()
        self._adapter = context.adapter_of(model)

    async def prepare(self) -> list[PreparedRequest]:
        """Check everything; nothing runs yet."""
        body = self._body
        self._check_options()
        params = self._params()
        prompts = list_prompts(body.prompt) if body.prompt_embeds is None else embeds_prompts(body)
        width = params.n if params.beam_search is None else params.beam_search.width
        if len(prompts) * width > self._context.config.max_choices:
            name = "n" if params.n > 1 else "prompt"
            most = self._context.config.max_choices
            raise ApiError(400, f"a request may ask for {most} answers at most (prompts x n).", param=name)
        if len(prompts) == 1:
            return [await self._prepare(prompts[0], params)]
        prepared = []
        for index, prompt in enumerate(prompts):
            try:
                prepared.append(await self._prepare(prompt, params))
            except RequestError as error:
                raise RequestError(f"{error} (prompt[{index}])", param=error.param) from error
            await asyncio.sleep(0)  # others are served between the prompts of a long list
        return prepared

    async def _prepare(self, prompt: str | list[Any] | EmbedsPrompt, params: SamplingParams) -> PreparedRequest:
        return await self._llm.prepare(
            await self._tokens(prompt),
            params,
            self._id,
            priority=self._body.priority,
            reasoning_style=self._context.dialect.style,
            lora_request=self._adapter,
        )

    def _check_options(self) -> None:
        body = self._body
        if body.suffix:
            raise ApiError(400, "suffix is not possible with this model.", param="suffix")
        if body.stream and self._echoes and body.logprobs is not None and self._n > 1:
            raise ApiError(400, "a stream with echo and logprobs can have one choice per prompt.", param="n")

    def _params(self) -> SamplingParams:
        body = self._body
        own: dict[str, Any] = {"logprobs": body.logprobs}
        if self._only_scores:
            own |= {"max_tokens": 1, "min_tokens": 0}
        elif body.max_tokens is not None:
            own["max_tokens"] = body.max_tokens
        if self._echoes and body.logprobs is not None:
            own["prompt_logprobs"] = max(body.logprobs, body.prompt_logprobs or 0)
        return sampling_params(body, self._llm.default_sampling_params, **own)

    async def _tokens(self, prompt: str | list[Any] | EmbedsPrompt) -> PromptType:
        body, tokenizer = self._body, self._llm.tokenizer
        if isinstance(prompt, dict):
            return prompt
        found: TokensPrompt = {"prompt_token_ids": []}
        if isinstance(prompt, str):
            self._llm.check_text_length(len(prompt))
            add_special = body.add_special_tokens is not False
            ids = await self._llm.work_on(len(prompt), lambda: tokenizer.encode(prompt, add_special))
            found["prompt"] = prompt
        else:
            ids = prompt
        found["prompt_token_ids"] = truncated(ids, body, self._llm.info.max_model_len)
        if body.cache_salt is not None:
            found["cache_salt"] = body.cache_salt
        return found

    async def whole(self, prepared: Sequence[PreparedRequest]) -> Completion:
        """The answer in one piece."""
        finals: dict[int, RequestOutput] = {}
        async for index, output in run_all(self._llm, prepared, self._body.request_timeout):
            finals[index] = output
            self._usage.add(output, index)
        choices = [choice for index in sorted(finals) for choice in self._choices(index, finals[index], is_first=True)]
        return self._completion(choices, usage=self._final_usage(), timings=self._timings(list(finals.values())))

    async def chunks(self, prepared: Sequence[PreparedRequest]) -> AsyncGenerator[bytes, None]:
        """The answer as it comes, one frame for each output."""
        is_forced = self._context.config.enable_force_include_usage
        with_usage, continuous = self._body.usage_in_stream(is_forced=is_forced)
        seen: set[int] = set()
        last: dict[int, RequestOutput] = {}
        outputs = run_all(self._llm, prepared, self._body.request_timeout)
        try:
            async for index, output in outputs:
                self._usage.add(output, index)
                last[index] = output
                frames = []
                for choice in output.outputs:
                    number = self._number(index, choice)
                    (shown,) = self._choices(index, output, choice, is_first=number not in seen)
                    seen.add(number)
                    usage = self._final_usage() if continuous else None if with_usage else msgspec.UNSET
                    frames.append(frame(self._completion([shown], usage=usage)))
                yield b"".join(frames)
        finally:
            await outputs.aclose()
        if with_usage or self._body.return_timings:
            usage = self._final_usage() if with_usage else msgspec.UNSET
            yield frame(self._completion([], usage=usage, timings=self._timings(list(last.values()))))

    def _completion(
        self,
        choices: list[CompletionChoice],
        *,
        usage: Usage | None | msgspec.UnsetType,
        timings: Timings | None | msgspec.UnsetType = msgspec.UNSET,
    ) -> Completion:
        return Completion(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage, timings=timings
        )

    def _final_usage(self) -> Usage:
        if self._only_scores:
            self._usage.without_completion()
        return self._usage.usage

    def _timings(self, outputs: Sequence[RequestOutput]) -> Timings | None | msgspec.UnsetType:
        return Timings.of(merged_metrics(outputs)) if self._body.return_timings else msgspec.UNSET

    def _number(self, prompt_index: int, choice: CompletionOutput) -> int:
        """Index among all choices of the request: those of the first prompt come first."""
        return prompt_index * self._n + choice.index

    def _choices(
        self, prompt_index: int, output: RequestOutput, only: CompletionOutput | None = None, *, is_first: bool
    ) -> list[CompletionChoice]:
        """An output's choices as they are shown; ``is_first`` says that nothing of them was shown before."""
        return [
            self._choice(self._number(prompt_index, choice), output, choice, is_first)
            for choice in (output.outputs if only is None else [only])
        ]

    def _choice(self, number: int, output: RequestOutput, choice: CompletionOutput, is_first: bool) -> CompletionChoice:
        body = self._body
        echoed = self._echoes and is_first
        text = "" if self._only_scores else choice.text
        shown = CompletionChoice(
            index=number,
            text=self._prompt_text(output) + text if echoed else text,
            finish_reason="length" if self._only_scores and choice.finish_reason else choice.finish_reason,
            stop_reason=None if self._only_scores else choice.stop_reason,
        )
        if body.logprobs is not None:
            shown.logprobs = self._logprobs(number, output, choice, echoed)
        if body.return_token_ids:
            shown.token_ids = [] if self._only_scores else choice.token_ids
            if is_first:
                shown.prompt_token_ids = output.prompt_token_ids
        if body.prompt_logprobs is not None and output.prompt_logprobs is not None:
            shown.prompt_logprobs = output.prompt_logprobs
        return shown

    def _prompt_text(self, output: RequestOutput) -> str:
        whole = output.prompt if self._body.truncate_prompt_tokens is None else None
        if whole is not None:
            return whole
        return self._llm.tokenizer.decode(output.prompt_token_ids, skip_special_tokens=False)

    def _logprobs(
        self, number: int, output: RequestOutput, choice: CompletionOutput, echoed: bool
    ) -> CompletionLogprobs:
        found = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
        if echoed:
            for token_id, position in zip(output.prompt_token_ids, output.prompt_logprobs or (), strict=False):
                self._append(found, number, token_id, position)
        if not self._only_scores:
            for token_id, position in zip(choice.token_ids, choice.logprobs or (), strict=True):
                self._append(found, number, token_id, position)
        return found

    def _append(self, found: CompletionLogprobs, number: int, token_id: int, position: Position) -> None:
        offset = self._offsets.get(number, 0)
        if position is None:
            name = self._names.first_name(token_id)
            found.token_logprobs.append(None)
            found.top_logprobs.append(None)
            length = len(self._names.first_text(token_id))
        else:
            chosen = position[token_id]
            name = self._names.name(token_id, chosen)
            found.token_logprobs.append(max(chosen.logprob, LOWEST_LOGPROB))
            best = {
                self._names.name(each, entry): max(entry.logprob, LOWEST_LOGPROB) for each, entry in position.items()
            }
            found.top_logprobs.append(best)
            length = len(chosen.decoded_token or "")
        found.tokens.append(name)
        found.text_offset.append(offset)
        self._offsets[number] = offset + length


def embeds_prompts(body: CompletionRequest) -> list[str | list[Any] | EmbedsPrompt]:
    """The prompts of a request that gives embeddings. Raises ApiError or RequestError."""
    if body.prompt is not None or body.echo or body.truncate_prompt_tokens is not None:
        name = "prompt" if body.prompt is not None else "echo" if body.echo else "truncate_prompt_tokens"
        raise ApiError(400, f"{name} does not go together with prompt_embeds.", param="prompt_embeds")
    given = [body.prompt_embeds] if isinstance(body.prompt_embeds, str) else body.prompt_embeds or []
    if not 0 < len(given) <= MAX_PROMPTS:
        raise ApiError(400, f"prompt_embeds must have 1 to {MAX_PROMPTS} entries.", param="prompt_embeds")
    found: list[str | list[Any] | EmbedsPrompt] = []
    for text in given:
        prompt: EmbedsPrompt = {"prompt_embeds": decode_embeds(text)}
        if body.cache_salt is not None:
            prompt["cache_salt"] = body.cache_salt
        found.append(prompt)
    return found


def list_prompts(given: Any) -> list[str | list[Any] | EmbedsPrompt]:
    """The prompts of a request, each text or token ids. Raises ApiError for anything else."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list) or not given:
        raise ApiError(400, "prompt must be text, a list of texts, token ids, or a list of those.", param="prompt")
    kinds = {type(each) for each in given}
    if kinds <= {int, float, bool}:  # the engine says which of them is no token id
        return [given]
    if kinds not in ({str}, {list}):
        raise ApiError(400, "prompt must hold texts only, token ids only, or lists of token ids only.", param="prompt")
    if len(given) > MAX_PROMPTS:
        raise ApiError(400, f"prompt may have at most {MAX_PROMPTS} entries.", param="prompt")
    return given
