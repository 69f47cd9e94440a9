"""What completions and chat completions have in common: fields, sampling parameters, token counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import msgspec

from octavo import __version__
from octavo.server.api_error import ApiError
from octavo.server.openai.response_format import as_words, asked_shape
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.beam_search import BeamSearch
from octavo.words.outputs import Logprob, RequestMetrics, RequestOutput
from octavo.words.repetition_detection import RepetitionDetectionParams
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

FINGERPRINT = f"octavo-{__version__}"
"""What made an answer: the same version gives the same answer to the same seed on the same machine."""
MAX_STOPS = 64
MAX_STOP_CHARACTERS = 1024
LOWEST_LOGPROB = -9999.0
"""What minus infinity is told as: JSON has no word for it."""
MAX_LIST_ENTRIES = 1024
MAX_ALLOWED_TOKENS = 1 << 18


class StreamOptions(msgspec.Struct, kw_only=True):
    """``include_usage``: token counts in a chunk of their own at the end; ``continuous_usage_stats``: in each."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """Fields of both kinds of completion. None means the model's default."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None

    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: int | None = None
    logit_bias: Annotated[dict[str, float], msgspec.Meta(max_length=MAX_LIST_ENTRIES)] | None = None
    response_format: Any = None

    # Beyond OpenAI's
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: str | None = None
    add_special_tokens: bool | None = None
    cache_salt: str | None = None
    priority: int | None = None
    request_id: str | None = None
    request_timeout: float | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    return_timings: bool | None = None
    structured_outputs: Any = None
    thinking_token_budget: int | None = None
    repetition_detection: Any = None
    vllm_xargs: dict[str, Any] | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    best_of: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None

    def usage_in_stream(self, *, is_forced: bool) -> tuple[bool, bool]:
        """Whether a stream has token counts at its end, and whether in each of its chunks."""
        options = self.stream_options
        at_end = bool(options and options.include_usage) or is_forced
        return at_end, at_end and bool(options and options.continuous_usage_stats)


_AS_THEY_ARE = (
    "n", "temperature", "top_p", "frequency_penalty", "presence_penalty", "seed", "stop", "top_k", "min_p",
    "repetition_penalty", "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "min_tokens",
    "skip_special_tokens", "spaces_between_special_tokens", "allowed_token_ids", "bad_words", "prompt_logprobs",
    "thinking_token_budget",
)  # fmt: skip


def sampling_params(body: GenerationRequest, defaults: SamplingParams, **own: Any) -> SamplingParams:
    """The model's defaults with what the request says, and ``own`` on top. Raises RequestError or ApiError."""
    check_lists(body)
    given = {name: value for name in _AS_THEY_ARE if (value := getattr(body, name)) is not None}
    if body.logit_bias is not None:
        given["logit_bias"] = token_biases(body.logit_bias)
    given["structured_outputs"] = asked_shape("response_format", body.response_format, body.structured_outputs)
    if body.repetition_detection is not None:
        given["repetition_detection"] = as_words(
            body.repetition_detection, RepetitionDetectionParams, "repetition_detection"
        )
    if body.vllm_xargs is not None:
        given["extra_args"] = body.vllm_xargs
    given |= beam_wishes(body)
    kind = RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY
    return defaults.clone(**{**given, "output_kind": kind, **own})


def beam_wishes(body: GenerationRequest) -> dict[str, Any]:
    """What a request says of beam search, as SamplingParams; the width is beam_width, or best_of, or n."""
    width = body.beam_width or body.best_of or body.n
    if not body.use_beam_search:
        for name in ("beam_width", "length_penalty", "early_stopping"):
            if getattr(body, name) is not None:
                raise ApiError(400, f"{name} needs use_beam_search.", param=name)
        if body.best_of is not None and body.best_of != (body.n or 1):
            raise ApiError(400, "best_of is not possible without use_beam_search; use n.", param="best_of")
        return {}
    if width is None:
        raise ApiError(400, "use_beam_search needs beam_width.", param="beam_width")
    if body.temperature not in (None, 0, 1):
        raise ApiError(400, "beam search does not sample: leave out the temperature.", param="temperature")
    search = BeamSearch(
        width=width,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=body.early_stopping or False,
    )
    return {"beam_search": search, "temperature": 0.0}


def check_lists(body: GenerationRequest) -> None:
    """Limits on lists that a client writes."""
    stops = body.stop if isinstance(body.stop, list) else [body.stop or " "]
    check_stops("stop", stops)
    for name, most in (("stop_token_ids", MAX_LIST_ENTRIES), ("allowed_token_ids", MAX_ALLOWED_TOKENS)):
        if len(getattr(body, name) or ()) > most:
            raise ApiError(400, f"{name} may have at most {most} entries.", param=name)
    if any(len(word) > MAX_STOP_CHARACTERS for word in body.bad_words or ()):
        raise ApiError(400, f"bad_words may have at most {MAX_STOP_CHARACTERS} characters each.", param="bad_words")
    check_timeout(body.request_timeout)
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream.", param="stream_options")


def check_timeout(seconds: float | None) -> None:
    """Limits on the time that a request may take."""
    if seconds is not None and not 0 < seconds < 1e9:
        raise ApiError(400, "request_timeout must be above 0 seconds.", param="request_timeout")


def check_stops(name: str, stops: Sequence[str]) -> None:
    """Limits on stop strings."""
    if len(stops) > MAX_STOPS:
        raise ApiError(400, f"{name} may have at most {MAX_STOPS} entries.", param=name)
    if any(len(stop) > MAX_STOP_CHARACTERS for stop in stops):
        raise ApiError(400, f"{name} may have at most {MAX_STOP_CHARACTERS} characters each.", param=name)


def token_biases(given: dict[str, float]) -> dict[int, float]:
    """Keys of JSON objects are text; those here must be token ids."""
    for key in given:
        if not (key.isascii() and key.isdecimal() and len(key) < 12):
            raise ApiError(400, f"logit_bias has the key {key[:40]!r}, which is no token id.", param="logit_bias")
    return {int(key): bias for key, bias in given.items()}


def truncated(token_ids: list[int], body: GenerationRequest, max_model_len: int) -> list[int]:
    """The part of a prompt that ``truncate_prompt_tokens`` leaves: its last tokens, or its first ones on request."""
    most, side = body.truncate_prompt_tokens, body.truncation_side or "left"
    if side not in ("left", "right"):
        raise ApiError(400, "truncation_side must be left or right.", param="truncation_side")
    if most is None:
        return token_ids
    if most == -1:
        most = max_model_len - (body.max_tokens or 1)
    if most < 1:
        name = "truncate_prompt_tokens"
        raise ApiError(400, f"{name} must be at least 1, or -1 for what fits.", param=name)
    return token_ids[-most:] if side == "left" else token_ids[:most]


# Token counts


class PromptTokensDetails(msgspec.Struct, kw_only=True):
    """Prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, kw_only=True):
    """Token counts of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class UsageCounter:
    """Adds up the tokens of a request's outputs; ``num_prompts`` of them make up one answer."""

    def __init__(self) -> None:
        self._prompt: dict[int, int] = {}
        self._cached: dict[int, int] = {}
        self._num_completion = 0

    def add(self, output: RequestOutput, prompt_index: int = 0) -> None:
        """Count an output that brought new tokens (DELTA), or the only one (FINAL_ONLY)."""
        self._prompt[prompt_index] = len(output.prompt_token_ids)
        self._cached[prompt_index] = output.num_cached_tokens
        for choice in output.outputs:
            self._num_completion += len(choice.token_ids)

    def without_completion(self) -> None:
        """The tokens that were generated are not shown: the request only scored its prompt."""
        self._num_completion = 0

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        num_prompt = sum(self._prompt.values())
        return Usage(
            prompt_tokens=num_prompt,
            completion_tokens=self._num_completion,
            total_tokens=num_prompt + self._num_completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached.values())),
        )


class Timings(msgspec.Struct, kw_only=True):
    """When things happened, in milliseconds from the arrival of the request; None = not (yet)."""

    scheduled_ms: float | None
    first_token_ms: float | None
    finished_ms: float | None
    num_preemptions: int

    @classmethod
    def of(cls, metrics: RequestMetrics | None) -> Timings | None:
        """From what the engine measured."""
        if metrics is None:
            return None

        def since_arrival(moment: float | None) -> float | None:
            return None if moment is None else round(1e3 * (moment - metrics.arrival_time), 3)

        return cls(
            scheduled_ms=since_arrival(metrics.first_scheduled_time),
            first_token_ms=since_arrival(metrics.first_token_time),
            finished_ms=since_arrival(metrics.finished_time),
            num_preemptions=metrics.num_preemptions,
        )


def merged_metrics(outputs: Iterable[RequestOutput]) -> RequestMetrics | None:
    """What was measured of the request that ended last."""
    found = [output.metrics for output in outputs if output.metrics is not None]
    return max(found, key=lambda metrics: metrics.finished_time or 0.0, default=None)


# Log-probabilities


class TokenNames:
    """How tokens are shown: as text, or as ``token_id:ID`` on request."""

    def __init__(self, tokenizer: Tokenizer, *, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._as_ids = as_ids

    def name(self, token_id: int, logprob: Logprob) -> str:
        """The token's text in its place (empty for one that leaves a character unfinished)."""
        return f"token_id:{token_id}" if self._as_ids else logprob.decoded_token or ""

    def first_name(self, token_id: int) -> str:
        """A prompt's first token, which has no log-probability."""
        return f"token_id:{token_id}" if self._as_ids else self.first_text(token_id)

    def first_text(self, token_id: int) -> str:
        """The text that a text begins with by this token; none where it leaves a character unfinished."""
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        return "" if text.endswith("\N{REPLACEMENT CHARACTER}") else text

    def raw(self, token_id: int) -> list[int]:
        """The token's bytes."""
        return list(self._tokenizer.token_bytes(token_id))
