"""What a caller gets back for a request."""

from __future__ import annotations

import msgspec


class Logprob(msgspec.Struct, frozen=True):
    """One candidate at one position: its log-probability, its rank (1 = most likely) and its text."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


class RequestMetrics(msgspec.Struct, kw_only=True):
    """When things happened to a request (seconds, ``time.time``), and what it cost.

    ``num_draft_tokens`` were guessed for it and verified, of which ``num_accepted_tokens`` were right.
    """

    arrival_time: float = 0.0
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    finished_time: float | None = None
    num_preemptions: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One choice of a request.

    ``logprobs`` has one dict per token of ``token_ids``: the asked best candidates and the chosen token.
    ``finish_reason`` is stop, length, repetition, abort or error; ``stop_reason`` is the stop string or token id that
    ended it, "repetition", or None for an end-of-sequence token. ``error`` says why a choice ended with ``error``, and
    ``is_refused`` that the request is to blame and not the engine.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    is_refused: bool = False

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


class PoolingOutput(msgspec.Struct, kw_only=True):
    """What a text was pooled to: a vector, probabilities, one score, or a vector per token one after the other."""

    data: list[float]

    @property
    def embedding(self) -> list[float]:
        """The vector of ``embed``."""
        return self.data

    @property
    def probs(self) -> list[float]:
        """The probabilities of ``classify``, one for each label."""
        return self.data

    @property
    def score(self) -> float:
        """The one number of ``score``."""
        return self.data[0]


class PoolingRequestOutput(msgspec.Struct, kw_only=True):
    """A pooling request's answer; ``error`` says why there is none."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    error: str | None = None


class RequestOutput(msgspec.Struct, kw_only=True):
    """A request's answer so far (or its newest part, see RequestOutputKind).

    ``prompt_logprobs`` has one entry per prompt token, the first None. ``num_cached_tokens`` counts the prompt
    tokens whose keys and values came from the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    metrics: RequestMetrics | None = None
