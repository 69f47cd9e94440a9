"""From a user's sampling parameters to those that an engine can follow."""

from __future__ import annotations

import copy
import hashlib
import itertools
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from octavo.checkpoint.generation_config import GenerationConfig, end_token_ids
from octavo.config.engine_config import EngineConfig
from octavo.frontend.prompt_reader import in_vocabulary
from octavo.tokenizer.reasoning_style import ReasoningStyle, style_of_template
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.util.lazy import resolve
from octavo.util.os_random import OsRandom
from octavo.words.errors import RequestError
from octavo.words.messages import ResolvedSampling, Thinking
from octavo.words.model_facts import ModelFacts
from octavo.words.sampling_params import MAX_SEED, SamplingParams

_TAIL_TOKENS = 32
"""Tokens at the end of a prompt that are looked at for tags of thoughts."""
GRAMMAR_CHECK = "octavo.control.structured_output.backends.llguidance:check_grammar"


class SamplingResolver:
    """Checks parameters and fills in what they leave open. Thread-safe. All it refuses is a RequestError.

    ``seeds`` gives the seed of a request that brings none, from the request's ordinal; the default derives it from the
    engine's seed, so that an offline run repeats.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        generation_config: GenerationConfig,
        config: EngineConfig,
        max_model_len: int,
        seeds: Callable[[int], int] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = facts.vocab_size
        self._generation_config = generation_config
        self._config = config.model
        self._speculates = config.speculation.speculative_method != "none"
        self._max_model_len = max_model_len
        self._seeds = seeds or self._offline_seed
        self._ordinals = itertools.count()
        self._eos_token_ids = end_token_ids(generation_config, facts, tokenizer.eos_token_id)

    def default_params(self) -> SamplingParams:
        """What a request without parameters gets: the model's own defaults, unless generation_config says otherwise."""
        return copy.copy(self._defaults)

    @cached_property
    def _defaults(self) -> SamplingParams:
        own: dict[str, Any] = dict(self._generation_config.defaults)
        return SamplingParams(**own) if self._config.generation_config == "auto" else SamplingParams()

    def resolve(
        self, params: SamplingParams, num_prompt_tokens: int, reasoning_end_ids: tuple[int, ...]
    ) -> ResolvedSampling:
        """The parameters with everything that follows from model, prompt and engine."""
        for name in ("stop_token_ids", "allowed_token_ids", "logit_bias"):
            in_vocabulary(name, getattr(params, name) or (), self._vocab_size)
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
        bad_words = tuple(self._bad_words(params.bad_words or ()))
        self._check_something_is_left(params, bad_words)
        room = self._max_model_len - num_prompt_tokens
        ordinal = next(self._ordinals)
        return ResolvedSampling(
            params=params,
            seed=self._seeds(ordinal) if params.seed is None else params.seed,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            num_text_tokens=min(self._tokenizer.num_text_tokens, self._vocab_size),
            eos_token_ids=() if params.ignore_eos else self._eos_token_ids,
            bad_words_token_ids=bad_words,
            reasoning_end_ids=reasoning_end_ids,
        )

    def thinking(self, prompt_token_ids: list[int], style: ReasoningStyle | None) -> Thinking | None:
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

    def _check_something_is_left(self, params: SamplingParams, bad_words: tuple[tuple[int, ...], ...]) -> None:
        """Refuse allowed tokens of which none could ever be the first."""
        if params.allowed_token_ids is None:
            return
        left = {each for each in params.allowed_token_ids if each < self._tokenizer.num_text_tokens}
        left -= {word[0] for word in bad_words if len(word) == 1}
        if params.min_tokens:
            left -= {*(() if params.ignore_eos else self._eos_token_ids), *(params.stop_token_ids or ())}
        if not left:
            raise RequestError(
                "allowed_token_ids holds no token that may come: leave out those that bad_words forbids, that end an "
                "answer before min_tokens, or that stand for no text.",
                param="allowed_token_ids",
            )

    def _bad_words(self, words: Iterable[str]) -> Iterable[tuple[int, ...]]:
        """Each word as it begins a text and as it follows a space: vocabularies write the two differently."""
        found: dict[tuple[int, ...], None] = {}
        for word in words:
            for text in (word, " " + word.lstrip(" ")):
                ids = self._tokenizer.encode(text, add_special_tokens=False, allow_special=False, at_start=False)
                if not ids:
                    raise RequestError(f"bad_words holds {word!r}, which has no tokens.", param="bad_words")
                found[tuple(in_vocabulary("bad_words", ids, self._vocab_size))] = None
        return found

    def _offline_seed(self, ordinal: int) -> int:
        digest = hashlib.sha256(f"{self._config.seed}/{ordinal}".encode()).digest()
        return int.from_bytes(digest[:8], "little") & MAX_SEED


class OperatingSystemSeeds:
    """Seeds that nobody can predict: what the server gives requests that bring none."""

    def __init__(self) -> None:
        self._random = OsRandom()

    def __call__(self, _ordinal: int) -> int:
        return self._random.number()
