"""From a user's prompt and wishes to checked requests for the core."""

from __future__ import annotations

import copy
import hashlib
import itertools
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from octavo.checkpoint.generation_config import GenerationConfig, end_token_ids
from octavo.config.engine_config import EngineConfig
from octavo.frontend.adapters import adapters_of
from octavo.frontend.prompt_embeds import checked_embeds
from octavo.tokenizer.reasoning_style import ReasoningStyle, style_of_template
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.util.lazy import resolve
from octavo.words.errors import RequestError
from octavo.words.inputs import PromptType
from octavo.words.lora import Adapter, LoRARequest
from octavo.words.messages import EngineCoreRequest, ResolvedSampling, Thinking
from octavo.words.model_facts import ModelFacts
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import MAX_SEED, RequestOutputKind, SamplingParams

_PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "prompt_embeds", "cache_salt", "priority"})
_MAX_SALT_CHARACTERS = 4096
# Every vocabulary has tokens of so many characters.
_SHORT_TOKEN = 8
_TAIL_TOKENS = 32
"""Tokens at the end of a prompt that are looked at for tags of thoughts."""
GRAMMAR_CHECK = "octavo.control.structured_output.backends.llguidance:check_grammar"


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


@dataclass(frozen=True, kw_only=True)
class _Prompt:
    token_ids: list[int]
    cache_salt: str | None
    priority: int
    embeds: bytes = b""


class InputProcessor:
    """Checks and tokenises prompts, resolves parameters. Thread-safe.

    ``max_model_len`` is the fitted length of the engine; ``max_request_len`` is less where the KV cache is smaller than
    that. ``seeds`` gives the seed of a request that brings none, from
    the request's ordinal; the default derives it from the engine's seed, so that an offline run repeats.
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
        self._tokenizer = tokenizer
        self._vocab_size = facts.vocab_size
        self._hidden_size = facts.hidden_size
        self._num_labels = facts.num_labels
        self._dimensions = () if config.model.matryoshka else facts.matryoshka_dimensions
        self._runner = runner
        self._adapters = adapters_of(config.lora, facts)
        self._generation_config = generation_config
        self._config = config.model
        self._speculates = config.speculation.speculative_method != "none"
        self._ranks_by_priority = config.scheduler.scheduling_policy == "priority"
        self._max_model_len = max_model_len
        self._max_request_len = max_model_len if max_request_len is None else max_request_len
        self._seeds = seeds or self._offline_seed
        self._ordinals = itertools.count()
        self._eos_token_ids = end_token_ids(generation_config, facts, tokenizer.eos_token_id)

    def default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: the model's own defaults, unless generation_config says otherwise."""
        return copy.copy(self._defaults)

    @cached_property
    def _defaults(self) -> SamplingParams:
        own: dict[str, Any] = dict(self._generation_config.defaults)
        return SamplingParams(**own) if self._config.generation_config == "auto" else SamplingParams()

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
        """Check a request and turn it into tokens. RequestError for one that cannot be served."""
        choices = self.process(
            prompt,
            params,
            request_id,
            priority=priority or 0,
            arrival_time=arrival_time,
            reasoning_end_ids=reasoning_end_ids,
            lora_request=lora_request,
            reasoning_style=reasoning_style,
        )
        return PreparedRequest(request_id, prompt_text(prompt), choices)

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
        self._check_pooling(params)
        if isinstance(prompt, tuple):
            checked, params = self._read_pair(prompt, params)
        else:
            checked = self._read_prompt(prompt, priority or 0)
        checked = replace(checked, token_ids=self._truncated(checked.token_ids, params))
        num_tokens = len(checked.token_ids)
        if num_tokens > self._max_model_len:
            raise RequestError(
                f"This model's maximum context length is {self._max_model_len} tokens. The text has {num_tokens}; "
                "shorten it, or give truncate_prompt_tokens=-1.",
                param="prompt",
            )
        sampling = ResolvedSampling(
            params=SamplingParams(max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY),
            seed=0,
            max_tokens=1,
            num_text_tokens=self._vocab_size,
            pooling=params,
        )
        return PreparedRequest(request_id, None, [_core_request(request_id, checked, sampling, arrival_time)])

    def _check_pooling(self, params: PoolingParams) -> None:
        if self._runner != "pooling":
            raise RequestError(
                f"{params.task}: this engine generates text; start it with runner=pooling, or with an embedding model.",
                param="task",
            )
        if params.task in ("classify", "score") and not self._num_labels:
            raise RequestError(
                f"{params.task}: this model has no classifier; it can embed and token_embed.", param="task"
            )
        if params.dimensions is not None:
            self._check_dimensions(params.dimensions)

    def _check_dimensions(self, asked: int) -> None:
        if asked > self._hidden_size:
            problem = f"dimensions must be at most {self._hidden_size}, which this model's vectors have; got {asked}."
        elif self._dimensions is None:
            problem = (
                "dimensions: nothing says that this model's vectors may be shortened (matryoshka in its config.json); "
                "start with matryoshka=True (--matryoshka) if you know that they may."
            )
        elif self._dimensions and asked not in self._dimensions:
            problem = f"dimensions can be {', '.join(map(str, self._dimensions))} with this model; got {asked}."
        else:
            return
        raise RequestError(problem, param="dimensions")

    def _read_pair(self, pair: tuple[str, str], params: PoolingParams) -> tuple[_Prompt, PoolingParams]:
        """[CLS] first [SEP] second [SEP], as encoders read two texts."""
        first = self._tokenizer.encode(pair[0])
        second = self._tokenizer.encode(pair[1])
        prefix = self._tokenizer.num_prefix_tokens
        room = self._max_model_len - len(first)
        behind = second[prefix:]
        if params.truncate_prompt_tokens is not None and len(behind) > room > 1:
            behind = [*behind[: room - 1], behind[-1]]
        checked = self._checked(first + behind, None, 0)
        return checked, msgspec.structs.replace(params, second_text_at=len(first))

    def _truncated(self, token_ids: list[int], params: PoolingParams) -> list[int]:
        """The text cut to what is asked, its ending special token kept."""
        asked = params.truncate_prompt_tokens
        if asked is None:
            return token_ids
        most = self._max_model_len if asked == -1 else min(asked, self._max_model_len)
        if len(token_ids) <= most:
            return token_ids
        ending = token_ids[len(token_ids) - self._tokenizer.num_suffix_tokens :]
        return token_ids[: max(most - len(ending), 0)] + ending

    def process(
        self,
        prompt: PromptType,
        params: SamplingParams | None,
        request_id: str,
        *,
        priority: int = 0,
        arrival_time: float | None = None,
        reasoning_end_ids: tuple[int, ...] = (),
        lora_request: LoRARequest | None = None,
        reasoning_style: ReasoningStyle | None = None,
    ) -> list[EngineCoreRequest]:
        """Return the requests, one per choice, that ``prompt`` comes to.

        ``params`` None takes the model's defaults. Internal ids are ``request_id`` with a random tail, so a caller may
        use an id twice; of n choices each is named ``{index}_{id}``. A priority in the prompt goes before ``priority``.
        ``reasoning_style`` None is that of the chat template.
        Raises RequestError naming what is wrong.
        """
        if self._runner == "pooling":
            raise RequestError(
                "this engine pools texts and generates none; use embed, classify or score.", param="prompt"
            )
        params = self.default_sampling_params() if params is None else own_params(params)
        checked = self._read_prompt(prompt, priority)
        if checked.embeds:
            _check_without_tokens(params)
        sampling = self._resolve(params, len(checked.token_ids), reasoning_end_ids)
        if params.thinking_token_budget is not None:
            thinking = self._thinking(checked.token_ids, reasoning_style)
            sampling = msgspec.structs.replace(sampling, thinking=thinking)
        request = _core_request(request_id, checked, sampling, arrival_time)
        request.adapter = self._adapters.find(lora_request)
        if params.n == 1:
            return [request]
        choices = [
            msgspec.structs.replace(
                request, request_id=f"{index}_{request.request_id}", sampling=_choice(sampling, index)
            )
            for index in range(params.n)
        ]
        if params.beam_search is not None:  # one request of the core, with several answers
            choices[0].choice_ids = tuple(choice.request_id for choice in choices)
        return choices

    def _read_prompt(self, prompt: object, priority: int) -> _Prompt:
        if isinstance(prompt, str):
            return self._checked(self._encode(prompt), None, priority)
        if isinstance(prompt, list | tuple):
            return self._checked(prompt, None, priority)
        if not isinstance(prompt, Mapping):
            raise RequestError(
                f"a prompt is text, a list of token ids, or an object with prompt or prompt_token_ids; "
                f"got {type(prompt).__name__}.",
                param="prompt",
            )
        return self._read_mapping(prompt, priority)

    def _read_mapping(self, prompt: Mapping[str, Any], priority: int) -> _Prompt:
        if unknown := set(prompt) - _PROMPT_KEYS:
            names, known = (", ".join(sorted(map(str, keys))) for keys in (unknown, _PROMPT_KEYS))
            raise RequestError(f"a prompt has no {names}; it may have {known}.", param="prompt")
        if "prompt_embeds" in prompt:
            return self._read_embeds(prompt, priority)
        text, token_ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if text is not None and not isinstance(text, str):
            raise RequestError(f"prompt must be text, got {type(text).__name__}.", param="prompt")
        if text is None and token_ids is None:
            raise RequestError("a prompt needs prompt or prompt_token_ids.", param="prompt")
        ids = self._encode(str(text)) if token_ids is None else token_ids
        return self._checked(ids, prompt.get("cache_salt"), prompt.get("priority", priority))

    def _read_embeds(self, prompt: Mapping[str, Any], priority: int) -> _Prompt:
        if not self._config.enable_prompt_embeds or self._runner == "pooling":
            raise RequestError(
                "prompt_embeds are not taken here: start an engine that generates with --enable-prompt-embeds.",
                param="prompt_embeds",
            )
        if "prompt" in prompt or "prompt_token_ids" in prompt:
            raise RequestError("give prompt_embeds, or a prompt of text or tokens, not both.", param="prompt_embeds")
        embeds = checked_embeds(prompt["prompt_embeds"], self._hidden_size)
        placeholders = [0] * len(embeds)
        checked = self._checked(placeholders, prompt.get("cache_salt"), prompt.get("priority", priority))
        return replace(checked, embeds=embeds.tobytes())

    def check_text_length(self, num_characters: int) -> None:
        """Refuse a text that is too long whatever its tokens are, before a tokenizer works on it for minutes."""
        limit = self._max_model_len
        if num_characters <= _SHORT_TOKEN * limit:
            return
        if num_characters > self._tokenizer.longest_token * limit:
            raise RequestError(
                f"This model's maximum context length is {limit} tokens. The prompt has {num_characters} characters, "
                "more than so many tokens can have; shorten it.",
                param="prompt",
            )

    def _encode(self, text: str) -> list[int]:
        self.check_text_length(len(text))
        return self._tokenizer.encode(text)

    def _checked(self, token_ids: object, cache_salt: object, priority: object) -> _Prompt:
        if not isinstance(token_ids, list | tuple):
            name = "prompt_token_ids"
            raise RequestError(f"{name} must be a list of integers, got {type(token_ids).__name__}.", param=name)
        if not token_ids:
            raise RequestError("the prompt is empty; give at least one token.", param="prompt")
        if self._runner == "generate":  # of a text to pool, what is too much may be cut
            self._check_length(len(token_ids))
        ids = self._in_vocabulary("prompt_token_ids", token_ids)
        return _Prompt(token_ids=ids, cache_salt=_checked_salt(cache_salt), priority=self._checked_priority(priority))

    def _checked_priority(self, priority: object) -> int:
        if not isinstance(priority, int) or isinstance(priority, bool) or not -(2**31) <= priority < 2**31:
            raise RequestError(f"priority must be an integer of 32 bits, got {priority!r:.40}.", param="priority")
        if priority and not self._ranks_by_priority:
            raise RequestError(
                f"priority {priority} means nothing under the fcfs policy: leave it out, or start the engine with "
                f"--scheduling-policy priority.",
                param="priority",
            )
        return priority

    def _in_vocabulary(self, name: str, token_ids: Iterable[Any]) -> list[int]:
        """Return the ids as a list; RequestError naming the first that the model has no row for."""
        ids = list(token_ids)
        for place, token_id in enumerate(ids):
            if type(token_id) is not int:
                ids[place] = token_id = _plain_int(name, token_id)
            if not 0 <= token_id < self._vocab_size:
                raise RequestError(
                    f"{name} holds {token_id}, which is outside the model's vocabulary (0 to {self._vocab_size - 1}).",
                    param=name,
                )
        return ids

    def _check_length(self, num_tokens: int) -> None:
        limit = self._max_model_len
        if num_tokens > limit:
            raise RequestError(
                f"This model's maximum context length is {limit} tokens. The prompt has {num_tokens}; shorten it.",
                param="prompt",
            )
        if num_tokens == limit:
            raise RequestError(
                f"This model's maximum context length is {limit} tokens. The prompt has all {num_tokens} of them, "
                "which leaves no room for an output token; shorten it.",
                param="prompt",
            )
        if num_tokens >= self._max_request_len:
            raise RequestError(
                f"the prompt has {num_tokens} tokens, and the whole KV cache holds {self._max_request_len} with its "
                "answer; shorten it or enlarge the cache (kv_cache_memory_bytes, num_gpu_blocks_override).",
                param="prompt",
            )

    def _resolve(
        self, params: SamplingParams, num_prompt_tokens: int, reasoning_end_ids: tuple[int, ...]
    ) -> ResolvedSampling:
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            self._in_vocabulary(name, getattr(params, name) or ())
        self._resolve_logprobs(params)
        if params.beam_search is not None and self._speculates:
            raise RequestError(
                "beam search and speculative decoding do not go together: leave out use_beam_search, or start the "
                "engine without --speculative-method.",
                param="use_beam_search",
            )
        if params.structured_outputs is not None:
            resolve(GRAMMAR_CHECK)(params.structured_outputs)
        if params.extra_args and not self._config.logits_processors:
            raise RequestError(
                "extra_args are for the engine's own logits processors and it has none: leave them out, or start it "
                "with --logits-processors.",
                param="extra_args",
            )
        room = self._max_model_len - num_prompt_tokens
        ordinal = next(self._ordinals)
        return ResolvedSampling(
            params=params,
            seed=self._seeds(ordinal) if params.seed is None else params.seed,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            num_text_tokens=min(self._tokenizer.num_text_tokens, self._vocab_size),
            eos_token_ids=() if params.ignore_eos else self._eos_token_ids,
            bad_words_token_ids=tuple(self._bad_words(params.bad_words or ())),
            reasoning_end_ids=reasoning_end_ids,
        )

    def _thinking(self, prompt_token_ids: list[int], style: ReasoningStyle | None) -> Thinking | None:
        """Between which tokens the answer's thoughts will be; None where the prompt has ended them."""
        style = style or style_of_template(self._tokenizer.chat_template)
        if style is None:
            raise RequestError(
                "thinking_token_budget: the chat template of this model knows no thoughts; leave it out, or serve with "
                "--reasoning-parser.",
                param="thinking_token_budget",
            )
        tail = self._tokenizer.decode(prompt_token_ids[-_TAIL_TOKENS:], skip_special_tokens=False)
        if style.is_closed_by(tail):
            return None
        begin, end = (
            tuple(self._tokenizer.encode(tag, add_special_tokens=False, at_start=False))
            for tag in (style.begin, style.end)
        )
        return Thinking(begin_ids=() if style.is_opened_by(tail) else begin, end_ids=end)

    def _resolve_logprobs(self, params: SamplingParams) -> None:
        """Refuse more logprobs than the engine allows; -1 becomes the size of the vocabulary."""
        limit = self._config.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(params, name)
            if asked is None:
                continue
            if limit != -1 and (asked == -1 or asked > limit):
                shown = "the whole vocabulary (-1)" if asked == -1 else asked
                raise RequestError(
                    f"{name} asks for {shown}; this engine allows at most {limit} (option max_logprobs).", param=name
                )
            setattr(params, name, self._vocab_size if asked == -1 else min(asked, self._vocab_size))

    def _bad_words(self, words: Iterable[str]) -> Iterable[tuple[int, ...]]:
        """Each word as it begins a text and as it follows a space: vocabularies write the two differently."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip(" ")):
                ids = self._tokenizer.encode(text, add_special_tokens=False, allow_special=False, at_start=False)
                if not ids:
                    raise RequestError(f"bad_words holds {word!r}, which has no tokens.", param="bad_words")
                found[tuple(self._in_vocabulary("bad_words", ids))] = None
        return found

    def _offline_seed(self, ordinal: int) -> int:
        digest = hashlib.sha256(f"{self._config.seed}/{ordinal}".encode()).digest()
        return int.from_bytes(digest[:8], "little") & MAX_SEED


def operating_system_seed(_ordinal: int) -> int:
    """A seed that nobody can predict: what the server gives a request that brings none."""
    return secrets.randbits(63)


def prompt_text(prompt: PromptType) -> str | None:
    """The text of a prompt, None for one that has token ids only."""
    if isinstance(prompt, str):
        return prompt
    text = prompt.get("prompt") if isinstance(prompt, Mapping) else None
    return text if isinstance(text, str) else None


def own_params(params: object, **changes: Any) -> SamplingParams:
    """A checked copy of what a caller gave, with some fields replaced."""
    if not isinstance(params, SamplingParams):
        name = "sampling_params"
        raise RequestError(f"{name} must be SamplingParams, got {type(params).__name__}.", param=name)
    return params.clone(**changes)


def _core_request(
    request_id: str, prompt: _Prompt, sampling: ResolvedSampling, arrival_time: float | None
) -> EngineCoreRequest:
    """The request as the core gets it; its id is the user's with a random tail."""
    return EngineCoreRequest(
        request_id=f"{request_id}-{secrets.token_hex(4)}",
        prompt_token_ids=prompt.token_ids,
        sampling=sampling,
        arrival_time=time.time() if arrival_time is None else float(arrival_time),
        priority=prompt.priority,
        cache_salt=prompt.cache_salt,
        prompt_embeds=prompt.embeds,
    )


def _check_without_tokens(params: SamplingParams) -> None:
    for name, asks_nothing in (("prompt_logprobs", None), ("repetition_penalty", 1.0)):
        if getattr(params, name) != asks_nothing:
            raise RequestError(
                f"{name} needs the tokens of the prompt: it does not go together with prompt_embeds.", param=name
            )


def _choice(sampling: ResolvedSampling, index: int) -> ResolvedSampling:
    """The same for another of n choices; logprobs of the prompt are the first one's work."""
    if index == 0:
        return sampling
    params = sampling.params
    if params.prompt_logprobs is not None:
        params = params.clone(prompt_logprobs=None)
    return msgspec.structs.replace(sampling, params=params, choice_index=index)


def _checked_salt(salt: object) -> str | None:
    if salt is None or (isinstance(salt, str) and 0 < len(salt) <= _MAX_SALT_CHARACTERS and _is_unicode(salt)):
        return salt
    raise RequestError(
        f"cache_salt must be Unicode text of 1 to {_MAX_SALT_CHARACTERS} characters.", param="cache_salt"
    )


def _is_unicode(text: str) -> bool:
    """Whether no half of a surrogate pair stands alone; such text cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _plain_int(name: str, value: Any) -> int:
    """A numpy integer is an integer; a bool, a float or a string is none."""
    if not isinstance(value, bool | float | str) and hasattr(value, "__index__"):
        return int(value.__index__())
    raise RequestError(f"{name} must hold integers, got {value!r:.80}.", param=name)
