"""From a user's prompt and wishes to checked requests for the core."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.checkpoint.generation_config import GenerationConfig
from octavo.config.engine_config import EngineConfig
from octavo.frontend.adapters import adapters_of
from octavo.frontend.pooling_resolver import PoolingResolver
from octavo.frontend.prompt_reader import Prompt, PromptLimits, PromptReader, prompt_text
from octavo.frontend.sampling_resolver import SamplingResolver
from octavo.tokenizer.reasoning_style import ReasoningStyle
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.util.os_random import OsRandom
from octavo.words.errors import RequestError
from octavo.words.inputs import PromptType
from octavo.words.lora import Adapter, LoRARequest
from octavo.words.messages import EngineCoreRequest, ResolvedSampling
from octavo.words.model_facts import ModelFacts
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import SamplingParams


@dataclass(frozen=True)
class PreparedRequest:
    """A user's request that was checked and can be added: one core request per choice."""

    request_id: str
    prompt: str | None
    choices: list[EngineCoreRequest]

    @property
    def for_core(self) -> list[EngineCoreRequest]:
        """What the core is handed: each choice, or of a beam search the one that brings all."""
        return self.choices[:1] if self.choices[0].choice_ids else self.choices


class InputProcessor:
    """Makes requests of prompts (``PromptReader``) and wishes (``SamplingResolver``, ``PoolingResolver``). Thread-safe.

    ``max_model_len`` is the fitted length of the engine; ``max_request_len`` is less where the KV cache is smaller than
    that. ``seeds`` gives the seed of a request that brings none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        generation_config: GenerationConfig,
        config: EngineConfig,
        max_model_len: int,
        *,
        max_request_len: int | None = None,
        runner: str = "generate",
        seeds: Callable[[int], int] | None = None,
    ) -> None:
        self._pools = runner == "pooling"
        self._tells_texts_apart = facts.num_token_types > 1
        self._random = OsRandom()
        self._adapters = adapters_of(config.lora, facts)
        self._max_model_len = max_model_len
        self._sampling = SamplingResolver(tokenizer, facts, generation_config, config, max_model_len, seeds)
        self._pooling = PoolingResolver(facts, may_shorten=config.model.matryoshka)
        limits = PromptLimits(
            max_model_len=max_model_len,
            max_request_len=max_model_len if max_request_len is None else max_request_len,
            vocab_size=facts.vocab_size,
            hidden_size=facts.hidden_size,
            may_be_cut=self._pools,
            takes_embeds=config.model.enable_prompt_embeds and not self._pools,
            ranks_by_priority=config.scheduler.scheduling_policy == "priority",
        )
        self._prompts = PromptReader(tokenizer, limits)

    def default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: the model's own defaults, unless generation_config says otherwise."""
        return self._sampling.default_params()

    def check_generates(self) -> None:
        """Raise RequestError where the engine answers with numbers only."""
        if self._pools:
            raise RequestError(
                "this engine pools texts and generates none; use embed, classify or score.", param="prompt"
            )

    def check_text_length(self, num_characters: int) -> None:
        """Refuse a text that is too long whatever its tokens are, before a tokenizer works on it for minutes."""
        self._prompts.check_text_length(num_characters)

    def prepare(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None = None,
        *,
        priority: int | None = None,
        arrival_time: float | None = None,
        reasoning_end_ids: tuple[int, ...] = (),
        lora_request: LoRARequest | None = None,
        reasoning_style: ReasoningStyle | None = None,
    ) -> PreparedRequest:
        """Check a request and turn it into tokens; nothing runs yet.

        ``params`` None takes the model's defaults. Internal ids are ``request_id`` with a random tail, so a caller may
        use an id twice; of n choices each is named ``{index}_{id}``. A priority in the prompt goes before ``priority``.
        ``reasoning_style`` None is that of the chat template. A grammar holds after ``reasoning_end_ids``, or after
        thoughts that have a budget and begin at once.
        Raises RequestError naming what is wrong.
        """
        self.check_generates()
        params = self._sampling.default_params() if params is None else own_params(params)
        checked = self._prompts.read(prompt, priority or 0)
        checked = self._prompts.last_tokens(checked, params.truncate_prompt_tokens, params.max_tokens or 1)
        if checked.embeds:
            _check_without_tokens(params)
        thinking = None
        if params.thinking_token_budget is not None:
            thinking = self._sampling.thinking(checked.token_ids, reasoning_style)
        if thinking is not None and not thinking.begin_ids:
            reasoning_end_ids = thinking.end_ids
        sampling = self._sampling.resolve(params, len(checked.token_ids), reasoning_end_ids)
        sampling = msgspec.structs.replace(sampling, thinking=thinking)
        request = self._core_request(request_id, checked, sampling, arrival_time)
        request.adapter = self._adapters.find(lora_request)
        return PreparedRequest(request_id, prompt_text(prompt), _choices(request, params))

    def find_adapter(self, lora_request: LoRARequest) -> Adapter | None:
        """The adapter of a LoRARequest as its files are now. Raises RequestError for one that cannot be used."""
        return self._adapters.find(lora_request)

    def prepare_pooling(
        self,
        request_id: str,
        prompt: PromptType | tuple[str, str],
        params: PoolingParams,
        *,
        priority: int | None = None,
        arrival_time: float | None = None,
    ) -> PreparedRequest:
        """Check a request for numbers and turn it into tokens; a tuple is a pair of texts. Raises RequestError."""
        if not self._pools:
            raise RequestError(
                f"{params.task}: this engine generates text; start it with runner=pooling, or with an embedding model.",
                param="task",
            )
        self._pooling.check(params)
        if isinstance(prompt, tuple):
            checked, second_at = self._prompts.read_pair(prompt, cut=params.truncate_prompt_tokens is not None)
            if self._tells_texts_apart:
                params = msgspec.structs.replace(params, second_text_at=second_at)
        else:
            checked = self._prompts.read(self._pooling.with_prompt(prompt), priority or 0)
        checked = self._prompts.truncated(checked, params.truncate_prompt_tokens)
        num_tokens = len(checked.token_ids)
        if num_tokens > self._max_model_len:
            raise RequestError(
                f"This model's maximum context length is {self._max_model_len} tokens. The text has {num_tokens}; "
                "shorten it, or give truncate_prompt_tokens=-1.",
                param="prompt",
            )
        sampling = self._pooling.resolve(params)
        return PreparedRequest(request_id, None, [self._core_request(request_id, checked, sampling, arrival_time)])

    def _core_request(
        self, request_id: str, prompt: Prompt, sampling: ResolvedSampling, arrival_time: float | None
    ) -> EngineCoreRequest:
        """The request as the core gets it; its id is the user's with a random tail."""
        return EngineCoreRequest(
            request_id=f"{request_id}-{self._random.hex()[:8]}",
            prompt_token_ids=prompt.token_ids,
            sampling=sampling,
            arrival_time=time.time() if arrival_time is None else float(arrival_time),
            priority=prompt.priority,
            cache_salt=prompt.cache_salt,
            prompt_embeds=prompt.embeds,
        )


def own_params(params: object, **changes: Any) -> SamplingParams:
    """A checked copy of what a caller gave, with some fields replaced."""
    if not isinstance(params, SamplingParams):
        name = "sampling_params"
        raise RequestError(f"{name} must be SamplingParams, got {type(params).__name__}.", param=name)
    return params.clone(**changes)


def _check_without_tokens(params: SamplingParams) -> None:
    for name, asks_nothing in (("prompt_logprobs", None), ("repetition_penalty", 1.0)):
        if getattr(params, name) != asks_nothing:
            raise RequestError(
                f"{name} needs the tokens of the prompt: it does not go together with prompt_embeds.", param=name
            )


def _choices(request: EngineCoreRequest, params: SamplingParams) -> list[EngineCoreRequest]:
    """A request of the core for each of n choices; of a beam search the first brings the answers of all."""
    if params.n == 1:
        return [request]
    choices = [
        msgspec.structs.replace(
            request, request_id=f"{index}_{request.request_id}", sampling=_choice(request.sampling, index)
        )
        for index in range(params.n)
    ]
    if params.beam_search is not None:
        choices[0].choice_ids = tuple(choice.request_id for choice in choices)
    return choices


def _choice(sampling: ResolvedSampling, index: int) -> ResolvedSampling:
    """The same for another of n choices; logprobs of the prompt are the first one's work."""
    if index == 0:
        return sampling
    params = sampling.params
    if params.prompt_logprobs is not None:
        params = params.clone(prompt_logprobs=None)
    return msgspec.structs.replace(sampling, params=params, choice_index=index)
