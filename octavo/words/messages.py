"""Everything that the front end, the scheduler and the workers say to each other. Nothing else crosses a process.

    front end  --EngineCoreRequest-->  core      scheduler --SchedulerOutput-->     workers
    front end  <--EngineCoreOutputs--  core      scheduler <--ModelRunnerOutput--   workers

Structs are array-like on the wire: fields may be appended, never reordered. Those made for every request of every step
are not tracked by the garbage collector (``gc=False``): they cannot be part of a cycle.
"""

from __future__ import annotations

import enum

import msgspec

from octavo.words.lora import Adapter
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import SamplingParams


class FinishReason(enum.IntEnum):
    """Why a request ended."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


class Thinking(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """Where thoughts are in an answer: after the first ``begin_ids`` (from its start where these are empty), up to the
    next ``end_ids``."""

    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]


class ResolvedSampling(msgspec.Struct, array_like=True, frozen=True, kw_only=True):
    """SamplingParams with everything the engine needs resolved by the input processor.

    ``eos_token_ids`` end the request and are masked until min_tokens (empty under ignore_eos). ``num_text_tokens``
    is one past the last id the tokenizer knows: ids from there on are never sampled. ``choice_index`` is the
    position among n choices. ``max_tokens`` is at least 1. Structured output holds from the first token on, or, where
    ``reasoning_end_ids`` are given, from the first time that the output ends with these. A request with ``pooling``
    gets numbers and no token. ``thinking`` is given where thoughts have a budget and the prompt has not closed them.
    """

    params: SamplingParams
    seed: int
    max_tokens: int
    num_text_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()
    choice_index: int = 0
    reasoning_end_ids: tuple[int, ...] = ()
    pooling: PoolingParams | None = None
    thinking: Thinking | None = None

    @property
    def end_token_ids(self) -> frozenset[int]:
        """All ids that end the request: ``eos_token_ids`` and ``stop_token_ids``."""
        return frozenset(self.eos_token_ids).union(self.params.stop_token_ids or ())


class EngineCoreRequest(msgspec.Struct, array_like=True, kw_only=True):
    """One choice of one user request, ready for the core.

    ``arrival_time`` is ``time.time`` seconds. Lower ``priority`` runs first.

    A replay continues an answer that another core began; the core treats it as a preempted request. It brings the
    ``output_token_ids`` already produced and what the first core said of it: ``num_cached_tokens`` (-1: nothing yet),
    ``first_scheduled_time``, ``num_preemptions``. ``is_suspect``: it was in a step that its core did not survive.

    A beam search is one request with several answers: ``choice_ids`` name them, the request's own id first.
    ``prompt_embeds``: float32 rows in place of the prompt's tokens, whose ids then mean nothing.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling: ResolvedSampling
    arrival_time: float
    priority: int = 0
    cache_salt: str | None = None
    output_token_ids: list[int] = []
    client_index: int = 0
    num_cached_tokens: int = -1
    first_scheduled_time: float | None = None
    num_preemptions: int = 0
    is_suspect: bool = False
    adapter: Adapter | None = None
    choice_ids: tuple[str, ...] = ()
    prompt_embeds: bytes = b""


class LogprobsRow(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Candidates at one position: entry 0 is the chosen (or given) token with its rank, then the best in order."""

    token_ids: list[int]
    logprobs: list[float]
    rank: int


class NewRequestData(msgspec.Struct, array_like=True, kw_only=True):
    """All a worker needs to start, or after a preemption to start again, a request.

    ``block_ids`` has one list per KV group, null blocks (0) included, from position 0 on.
    """

    request_id: str
    prompt_token_ids: list[int]
    output_token_ids: list[int]
    sampling: ResolvedSampling
    block_ids: tuple[list[int], ...]
    num_computed_tokens: int
    adapter: Adapter | None = None
    prompt_embeds: bytes = b""


class CachedRequestData(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """What is new for a request the workers already know. ``new_block_ids`` are appended, one list per KV group."""

    request_id: str
    new_block_ids: tuple[list[int], ...]
    num_computed_tokens: int


class SchedulerOutput(msgspec.Struct, array_like=True, kw_only=True):
    """One step, decided.

    ``num_scheduled_tokens`` orders the batch: its key order is the row order. ``finished_request_ids`` and
    ``preempted_request_ids`` tell workers to drop state; they may be non-empty in a step without tokens.
    ``draft_token_ids`` are the drafts verified in this step, ``num_drafts`` the most tokens to guess after it for a
    request (none for others), ``num_trial_drafts`` the most at a time that are judged in hindsight, by what it says.
    ``block_copies`` are (source, destination) pairs done before the step, ``blocks_to_zero`` is cleared before it.

    A burst is a step with ``num_decode_steps`` above 1, of requests that get their next token: the workers go on with
    the tokens they chose, so many times in all, and may stop early. There are slots for all of it.
    """

    step_id: int
    new_requests: list[NewRequestData] = []
    cached_requests: list[CachedRequestData] = []
    num_scheduled_tokens: dict[str, int] = {}
    total_num_scheduled_tokens: int = 0
    finished_request_ids: list[str] = []
    preempted_request_ids: list[str] = []
    draft_token_ids: dict[str, list[int]] = {}
    num_drafts: dict[str, int] = {}
    block_copies: list[tuple[int, int]] = []
    blocks_to_zero: list[int] = []
    num_decode_steps: int = 1
    num_trial_drafts: dict[str, int] = {}


class GrammarMasks(msgspec.Struct, array_like=True, frozen=True):
    """What grammars allow in one step. ``rows[id]`` are a request's rows: one, and one more per draft.

    ``bitmask``: rows of int32 words, ``num_words`` each, one after the other; bit i of word w allows token 32 * w + i.
    ``failed`` maps a request whose grammar met a limit to the reason; its rows mean nothing.
    """

    rows: dict[str, tuple[int, int]]
    num_words: int
    bitmask: bytes
    failed: dict[str, str] = {}


class ModelRunnerOutput(msgspec.Struct, array_like=True, kw_only=True):
    """One step, done. Lists are parallel to ``request_ids`` (the rows of the step).

    ``sampled_token_ids[i]`` is empty while request i is still in its prompt, one token for a decode, several when
    drafts were accepted or in a burst, of which ``num_decode_steps`` were run. ``logprobs[i]`` has one row per sampled
    token, or is None. ``prompt_logprobs`` holds, per request that asked, the rows for positions ``start + 1 ...``
    of this step's chunk. ``failed`` maps a request to the reason it cannot go on (NaN logits); it harms no other. Those
    in ``refused`` asked for what cannot be had, and nothing is wrong with the engine. ``pooled`` holds the float32
    numbers of requests that asked for these. ``draft_token_ids`` are guesses for the next step; they, or
    ``draft_trials``, took ``draft_seconds``. Trials are steps with drafts that could have been, each as how many drafts
    and how many of them are right.
    """

    step_id: int
    request_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: list[list[LogprobsRow] | None] = []
    prompt_logprobs: dict[str, list[LogprobsRow]] = {}
    failed: dict[str, str] = {}
    refused: list[str] = []
    draft_token_ids: dict[str, list[int]] = {}
    draft_seconds: float = 0.0
    pooled: dict[str, bytes] = {}
    num_decode_steps: int = 1
    draft_trials: dict[str, list[tuple[int, int]]] = {}


class EngineCoreOutput(msgspec.Struct, array_like=True, kw_only=True, gc=False):
    """What a step brought to one request. Tokens after a stop are already trimmed.

    ``prompt_logprobs`` is sent once, with the first token, without the leading None. ``stop_reason`` is the stop
    token id or "repetition". Times are ``time.time`` seconds. ``num_draft_tokens`` were verified by this step,
    ``num_accepted_tokens`` of them were right. ``error`` says why a request ends with ``error``, and ``is_refused``
    that it asked for what cannot be had.
    """

    request_id: str
    new_token_ids: list[int]
    new_logprobs: list[LogprobsRow] | None = None
    prompt_logprobs: list[LogprobsRow] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    first_scheduled_time: float | None = None
    error: str | None = None
    pooled: bytes | None = None
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    is_refused: bool = False


class PrefixCacheStats(msgspec.Struct, array_like=True, kw_only=True):
    """Tokens looked up and found since start (counted once per request; a readmission is not counted)."""

    requests: int = 0
    queries: int = 0
    hits: int = 0


class SchedulerStats(msgspec.Struct, array_like=True, kw_only=True):
    """The scheduler after a step. Counters are totals since start; ``kv_cache_usage`` is 0..1.

    ``num_steps`` counts runs of the model, so each one of a burst; ``num_burst_steps`` those in the ``num_bursts``.
    ``num_drafts`` counts steps of requests that verified drafts, ``num_accepted_tokens_per_pos`` right drafts by their
    place among those of a step, ``num_draft_trials`` steps whose drafts were only judged in hindsight.
    ``num_prefill_chunks`` counts the parts of prompts that were computed in steps of their own, the last ones aside.
    """

    num_running: int = 0
    num_waiting: int = 0
    kv_cache_usage: float = 0.0
    num_preemptions: int = 0
    prefix_cache_queries: int = 0
    prefix_cache_hits: int = 0
    num_steps: int = 0
    num_prompt_tokens: int = 0
    num_generation_tokens: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_accepted_tokens_per_pos: list[int] = []
    num_beam_forks: int = 0
    num_bursts: int = 0
    num_burst_steps: int = 0
    num_draft_trials: int = 0
    num_prefill_chunks: int = 0


class EngineCoreOutputs(msgspec.Struct, array_like=True, kw_only=True):
    """All outputs of one step for one client. ``incarnation`` numbers the core process that made them."""

    outputs: list[EngineCoreOutput] = []
    stats: SchedulerStats | None = None
    incarnation: int = 0
