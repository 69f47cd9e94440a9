"""How one request wants its tokens chosen, and when it ends."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from octavo.words.beam_search import BeamSearch
from octavo.words.errors import RequestError
from octavo.words.repetition_detection import RepetitionDetectionParams
from octavo.words.structured_outputs import StructuredOutputParams

MAX_SEED = 2**63 - 1
MAX_N = 16_384
MAX_BAD_WORDS = 1_024
GREEDY_BELOW = 1e-5
LOWEST_TEMPERATURE = 0.01
MAX_INT = 2**31 - 1
# Beyond this, or its inverse, products of logits are no numbers any more.
MAX_REPETITION_PENALTY = 1e6
MAX_FLOAT = sys.float_info.max


class RequestOutputKind(enum.IntEnum):
    """What each RequestOutput of a request holds."""

    CUMULATIVE = 0
    """Everything so far, every step."""
    DELTA = 1
    """Only what is new, every step."""
    FINAL_ONLY = 2
    """Everything, once, at the end."""


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Everything a user says about sampling one request; a wrong value raises RequestError naming the field.

    Names, defaults and ranges follow vLLM's SamplingParams. Temperatures below 1e-5 mean greedy; between that
    and 0.01 they are lifted to 0.01. ``top_k`` 0 or -1 means all. ``max_tokens`` None fills the context.
    ``logprobs`` k returns the k best and the chosen token; -1 means the whole vocabulary where the engine's
    ``max_logprobs`` allows it. ``seed`` -1 means none given. After ``thinking_token_budget`` tokens of thought the
    end of the thoughts is forced. ``extra_args`` are read by the engine's own logits processors: plain values by name.
    ``truncate_prompt_tokens`` keeps so many of the last tokens of a longer prompt, -1 what fits before ``max_tokens``.
    ``beam_search`` looks for the ``n`` likeliest answers instead of sampling.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputParams | None = None
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetectionParams | None = None
    extra_args: dict[str, Any] | None = None
    beam_search: BeamSearch | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE

    def __post_init__(self) -> None:
        # Most fields of most requests are the defaults, which are right.
        given = [name for name, default in _DEFAULTS.items() if getattr(self, name) is not default]
        self._check_types(given)
        self._normalise()
        self._check_ranges(given)
        self._check_lists()
        self._check_combinations()
        if self.is_greedy or self.beam_search is not None:
            self.temperature, self.top_p, self.top_k, self.min_p = 0.0, 1.0, 0, 0.0

    @property
    def is_greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def stop_strings(self) -> list[str]:
        """Stop strings as a list (empty when none)."""
        return self.stop if isinstance(self.stop, list) else []

    def clone(self, **changes: Any) -> SamplingParams:
        """An independent, checked copy with some fields replaced."""
        return msgspec.structs.replace(self, **changes)

    def _normalise(self) -> None:
        if isinstance(self.stop, str):
            self.stop = [self.stop]
        for name in _LISTS:
            # A list of our own, whatever the caller does with his.
            if getattr(self, name) is not None:
                setattr(self, name, list(getattr(self, name)))
        for name in _NUMBERS:
            setattr(self, name, float(getattr(self, name)))
        if self.seed == -1:
            self.seed = None
        if self.top_k == -1:
            self.top_k = 0
        if GREEDY_BELOW <= self.temperature < LOWEST_TEMPERATURE:
            self.temperature = LOWEST_TEMPERATURE

    def _check_types(self, given: Iterable[str]) -> None:
        for name in given:
            _TYPES[name](name, getattr(self, name))

    def _check_ranges(self, given: Iterable[str]) -> None:
        for name in given:
            if name in _RANGES:
                is_in_range, rule = _RANGES[name]
                value = getattr(self, name)
                _require(name, value is None or is_in_range(value), rule, value)

    def _check_lists(self) -> None:
        for text in self.stop_strings:
            _require_text("stop", text)
        for token_id in self.stop_token_ids or []:
            _require_int("stop_token_ids", token_id)
        for token_id in self.allowed_token_ids or []:
            _require_int("allowed_token_ids", token_id)
        _require("allowed_token_ids", self.allowed_token_ids != [], "must not be empty", [])
        words = self.bad_words or []
        _require("bad_words", len(words) <= MAX_BAD_WORDS, f"must hold at most {MAX_BAD_WORDS} entries", len(words))
        for word in words:
            _require_text("bad_words", word)
        for token_id, bias in (self.logit_bias or {}).items():
            _require_int("logit_bias", token_id)
            _require_finite("logit_bias", bias)
            _require("logit_bias", -100.0 <= bias <= 100.0, "values must be between -100 and 100", bias)

    def _check_combinations(self) -> None:
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) must not exceed max_tokens ({self.max_tokens}).", param="min_tokens"
            )
        if self.is_greedy and self.n > 1 and self.beam_search is None:
            raise RequestError(
                f"n must be 1 when temperature is 0, got n={self.n}: all choices would be the same.", param="n"
            )
        if self.beam_search is not None:
            self._check_beam_search(self.beam_search)
        if self.stop_strings and not self.detokenize:
            raise RequestError("stop needs detokenize=True: stop strings are looked for in the text.", param="stop")

    def _check_beam_search(self, search: BeamSearch) -> None:
        if self.n > search.width:
            raise RequestError(f"n ({self.n}) must not exceed beam_width ({search.width}).", param="n")
        for name in _NOT_WITH_BEAMS:
            if getattr(self, name):
                raise RequestError(f"{name} and beam search do not go together: leave out one of them.", param=name)
        if self.prompt_logprobs is not None:
            raise RequestError("prompt_logprobs and beam search do not go together: leave out one.", param="logprobs")
        if self.logprobs is not None and not 0 <= self.logprobs <= 2 * search.width:
            raise RequestError(
                f"beam search knows the {2 * search.width} best candidates (twice beam_width): ask for logprobs of 0 "
                f"to {2 * search.width}, got {self.logprobs}.",
                param="logprobs",
            )


_NOT_WITH_BEAMS = ("structured_outputs", "stop", "repetition_detection")
_NUMBERS = ("presence_penalty", "frequency_penalty", "repetition_penalty", "temperature", "top_p", "min_p")
_LISTS = ("stop", "stop_token_ids", "allowed_token_ids", "bad_words")


def _require(name: str, holds: bool, rule: str, got: object) -> None:
    if not holds:
        raise RequestError(f"{name} {rule}, got {_short(got)}.", param=name)


def _require_int(name: str, value: object) -> None:
    _require(name, isinstance(value, int) and not isinstance(value, bool), "must be an integer", value)


def _require_finite(name: str, value: object) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    # An integer beyond every float has no isfinite.
    _require(name, is_number and -MAX_FLOAT <= value <= MAX_FLOAT, "must be a finite number", value)  # type: ignore[operator]


def _require_int_or_none(name: str, value: object) -> None:
    if value is not None:
        _require_int(name, value)


def _require_switch(name: str, value: object) -> None:
    _require(name, isinstance(value, bool), "must be True or False", value)


def _require_list(name: str, value: object) -> None:
    _require(name, isinstance(value, list | tuple | None), "must be a list", value)


def _require_stops(name: str, value: object) -> None:
    if not isinstance(value, str):
        _require_list(name, value)


def _require_kind(kind: type, said: str) -> Callable[[str, object], None]:
    def check(name: str, value: object) -> None:
        _require(name, isinstance(value, kind | None), f"must be {said}", value)

    return check


def _require_text(name: str, value: object) -> None:
    _require(name, isinstance(value, str) and value != "", "must hold non-empty strings", value)
    try:
        str(value).encode()
    except UnicodeEncodeError:
        _require(name, False, "must hold valid Unicode, no half of a surrogate pair", value)


def _require_output_kind(name: str, value: object) -> None:
    _require(name, isinstance(value, RequestOutputKind), "must be a RequestOutputKind", value)


def _require_plain(name: str, value: object) -> None:
    """Nothing but what a message can carry: text, numbers, lists and objects of these."""
    is_named = value is None or (isinstance(value, dict) and all(isinstance(key, str) for key in value))
    _require(name, is_named, "must be a dict with names as keys", value)
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        _require(name, False, "must hold plain values only (text, numbers, lists, dicts)", value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_TYPES: dict[str, Callable[[str, object], None]] = {
    **dict.fromkeys(("n", "top_k", "min_tokens"), _require_int),
    **dict.fromkeys(
        ("seed", "max_tokens", "logprobs", "prompt_logprobs", "truncate_prompt_tokens", "thinking_token_budget"),
        _require_int_or_none,
    ),
    **dict.fromkeys(_NUMBERS, _require_finite),
    **dict.fromkeys(
        (
            "ignore_eos",
            "detokenize",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "include_stop_str_in_output",
        ),
        _require_switch,
    ),
    **dict.fromkeys(_LISTS, _require_list),
    "stop": _require_stops,
    "logit_bias": _require_kind(dict, "a dict"),
    "structured_outputs": _require_kind(StructuredOutputParams, "StructuredOutputParams"),
    "repetition_detection": _require_kind(RepetitionDetectionParams, "RepetitionDetectionParams"),
    "beam_search": _require_kind(BeamSearch, "BeamSearch"),
    "extra_args": _require_plain,
    "output_kind": _require_output_kind,
}
_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "n": (lambda n: 1 <= n <= MAX_N, f"must be between 1 and {MAX_N}"),
    "presence_penalty": (lambda penalty: -2.0 <= penalty <= 2.0, "must be between -2 and 2"),
    "frequency_penalty": (lambda penalty: -2.0 <= penalty <= 2.0, "must be between -2 and 2"),
    "repetition_penalty": (
        lambda penalty: 1 / MAX_REPETITION_PENALTY <= penalty <= MAX_REPETITION_PENALTY,
        f"must be between {1 / MAX_REPETITION_PENALTY:g} and {MAX_REPETITION_PENALTY:g}",
    ),
    "temperature": (lambda temperature: 0.0 <= temperature <= 2.0, "must be between 0 and 2"),
    "top_p": (lambda top_p: 0.0 < top_p <= 1.0, "must be above 0 and at most 1"),
    "top_k": (lambda top_k: 0 <= top_k <= MAX_INT, f"must be -1 or 0 (all), or 1 to {MAX_INT}"),
    "min_p": (lambda min_p: 0.0 <= min_p <= 1.0, "must be between 0 and 1"),
    "seed": (lambda seed: 0 <= seed <= MAX_SEED, f"must be -1 (none) or 0 to {MAX_SEED}"),
    "max_tokens": (lambda number: 1 <= number <= MAX_INT, f"must be 1 to {MAX_INT}"),
    "min_tokens": (lambda number: 0 <= number <= MAX_INT, f"must be 0 to {MAX_INT}"),
    "truncate_prompt_tokens": (lambda number: number == -1 or 1 <= number <= MAX_INT, f"must be -1 or 1 to {MAX_INT}"),
    "thinking_token_budget": (lambda number: 0 <= number <= MAX_INT, f"must be 0 to {MAX_INT}"),
    "logprobs": (lambda number: number >= -1, "must be at least 0, or -1 for the whole vocabulary"),
    "prompt_logprobs": (lambda number: number >= -1, "must be at least 0, or -1 for the whole vocabulary"),
}
_DEFAULTS: dict[str, Any] = {field.name: field.default for field in msgspec.structs.fields(SamplingParams)}
