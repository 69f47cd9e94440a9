"""The scheduler's mutable record of one request."""

from __future__ import annotations

import copy
import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from octavo.words.messages import EngineCoreRequest, FinishReason, LogprobsRow

if TYPE_CHECKING:
    from octavo.control.scheduler.beams import Beam


class BlockHasher(Protocol):
    """Hashes full blocks of ``block_size`` tokens."""

    block_size: int

    def __call__(self, request: Request) -> list[bytes]:
        """Return the hashes of the full blocks that ``request.block_hashes`` does not hold yet."""


class RequestStatus(enum.IntEnum):
    """Where a request is. Everything from FINISHED_STOPPED on is finished."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6
    FINISHED_REPETITION = 7

    @property
    def is_finished(self) -> bool:
        return self >= RequestStatus.FINISHED_STOPPED


class Constraint(Protocol):
    """What the tokens of a request must keep to."""

    def take(self, token_id: int) -> bool:
        """Note the newest token; True when nothing may follow it."""


NEVER = 1 << 62
"""A number of tokens that no request reaches."""

FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
    RequestStatus.FINISHED_REPETITION: FinishReason.REPETITION,
}


class Request:
    """One request as the scheduler sees it: tokens, how many of them are computed, and how it ends.

    ``num_computed_tokens`` catches up with ``num_tokens`` and the drafts behind them; there are no prefill and decode
    phases. It counts a step's tokens from the moment the step is scheduled. ``num_output_placeholders`` are the tokens
    that steps in flight will sample, at most: one each, and one more per draft. ``last_step_id`` is the newest step
    that holds the request. ``max_total_tokens`` (prompt and output) is set when the scheduler takes the request.
    ``choice_ids`` name its answers: one, or those of a beam search.
    ``is_with_workers``: they know it; ``is_rewritten``: and must be told of it anew.
    ``block_hashes`` grow as tokens are appended (one per full hash block). Only the scheduler writes to it.
    """

    def __init__(self, message: EngineCoreRequest, block_hasher: BlockHasher | None = None) -> None:
        self.request_id = message.request_id
        self.client_index = message.client_index
        self.sampling = message.sampling
        self.arrival_time = message.arrival_time
        self.priority = message.priority
        self.cache_salt = message.cache_salt
        self.adapter = message.adapter

        self.prompt_embeds = message.prompt_embeds
        self.prompt_token_ids = message.prompt_token_ids
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.all_token_ids = message.prompt_token_ids + message.output_token_ids
        self.num_tokens = len(self.all_token_ids)
        self.draft_token_ids: list[int] = []
        self.num_tried_drafts = 0.0
        self.num_right_drafts = 0.0
        self.num_wanted_drafts = 0
        self.num_steps_without_drafts = 0
        self.num_vain_probes = 0
        self.num_known_to_drafter = 0

        self.status = RequestStatus.WAITING
        self.stop_reason: int | str | None = None
        self.error: str | None = None
        self.is_refused = False
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.last_step_id = 0
        self.max_total_tokens = 0
        self.num_cached_tokens = message.num_cached_tokens
        self.num_preemptions = message.num_preemptions
        self.first_scheduled_time = message.first_scheduled_time
        self.prompt_logprobs: list[LogprobsRow] = []
        self.constraint: Constraint | None = None
        self.choice_ids = message.choice_ids or (message.request_id,)
        self.beam: Beam | None = None
        self.is_with_workers = False
        self.is_rewritten = False

        self.eos_token_ids = frozenset(message.sampling.eos_token_ids)
        self.end_token_ids = message.sampling.end_token_ids
        """Ids that end the request once min_tokens are there: end of sequence and stop ids."""

        self.block_hashes: list[bytes] = []
        self._block_hasher = block_hasher
        self._num_tokens_to_hash = 0 if block_hasher is not None else NEVER
        self._hash_full_blocks()

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def output_token_ids(self) -> list[int]:
        return self.all_token_ids[self.num_prompt_tokens :]

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.sampling.params.prompt_logprobs is not None

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    @property
    def finish_reason(self) -> FinishReason | None:
        return FINISH_REASONS.get(self.status)

    def prompt_embeds_bytes(self, start: int, end: int) -> bytes:
        """The embeddings given for tokens [start, end); empty where there are none."""
        per_token = len(self.prompt_embeds) // self.num_prompt_tokens
        return self.prompt_embeds[start * per_token : end * per_token]

    def append_output_token(self, token_id: int) -> None:
        self.all_token_ids.append(token_id)
        self.num_tokens += 1
        if self.num_tokens >= self._num_tokens_to_hash:
            self._hash_full_blocks()

    def append_output_tokens(self, token_ids: Sequence[int]) -> None:
        for token_id in token_ids:
            self.append_output_token(token_id)

    def twin(self, request_id: str) -> Request:
        """A request with the same wishes, and nothing yet of its own."""
        twin = copy.copy(self)
        twin.request_id, twin.status = request_id, RequestStatus.WAITING
        twin.draft_token_ids, twin.prompt_logprobs = [], []
        twin.num_computed_tokens = twin.last_step_id = twin.num_preemptions = 0
        twin.is_with_workers = twin.is_rewritten = False
        return twin

    def take_over(self, other: Request) -> None:
        """Become what another request is, all of it computed or none: the next token is one's own."""
        self.all_token_ids = other.all_token_ids.copy()
        self.num_tokens = other.num_tokens
        self.block_hashes = other.block_hashes.copy()
        self._num_tokens_to_hash = other._num_tokens_to_hash
        self.num_computed_tokens = 0

    def _hash_full_blocks(self) -> None:
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))
            self._num_tokens_to_hash = (len(self.block_hashes) + 1) * self._block_hasher.block_size

    def __repr__(self) -> str:
        return f"Request({self.request_id}, {self.status.name}, computed {self.num_computed_tokens}/{self.num_tokens})"
