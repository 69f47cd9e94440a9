"""The scheduler's mutable record of one request."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence

from octavo.words.messages import EngineCoreRequest, FinishReason, LogprobsRow

BlockHasher = Callable[["Request"], list[bytes]]
"""Returns the hashes of the full blocks that ``request.block_hashes`` does not hold yet."""


class RequestStatus(enum.IntEnum):
    """Where a request is. Everything from FINISHED_STOPPED on is finished."""

    WAITING = 0
    RUNNING = 1
    PREEMPTED = 2
    FINISHED_STOPPED = 3
    FINISHED_LENGTH = 4
    FINISHED_ABORTED = 5
    FINISHED_ERROR = 6

    @property
    def is_finished(self) -> bool:
        return self >= RequestStatus.FINISHED_STOPPED


FINISH_REASONS = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
}


class Request:
    """One request as the scheduler sees it: tokens, how many of them are computed, and how it ends.

    ``num_computed_tokens`` catches up with ``num_tokens_with_drafts``; there are no prefill and decode phases.
    ``block_hashes`` grow as tokens are appended (one per full hash block). Only the scheduler writes to it.
    """

    def __init__(self, message: EngineCoreRequest, block_hasher: BlockHasher | None = None) -> None:
        self.request_id = message.request_id
        self.client_index = message.client_index
        self.sampling = message.sampling
        self.arrival_time = message.arrival_time
        self.priority = message.priority
        self.cache_salt = message.cache_salt

        self.prompt_token_ids = message.prompt_token_ids
        self.num_prompt_tokens = len(message.prompt_token_ids)
        self.all_token_ids = message.prompt_token_ids + message.output_token_ids
        self.draft_token_ids: list[int] = []

        self.status = RequestStatus.WAITING
        self.stop_reason: int | None = None
        self.error: str | None = None
        self.num_computed_tokens = 0
        self.num_output_placeholders = 0
        self.num_cached_tokens = -1
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        self.prompt_logprobs: list[LogprobsRow] = []

        self._block_hasher = block_hasher
        self.block_hashes: list[bytes] = []
        self._extend_block_hashes()

    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)

    @property
    def num_tokens_with_drafts(self) -> int:
        return len(self.all_token_ids) + len(self.draft_token_ids)

    @property
    def num_output_tokens(self) -> int:
        return len(self.all_token_ids) - self.num_prompt_tokens

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

    def append_output_tokens(self, token_ids: Sequence[int]) -> None:
        self.all_token_ids.extend(token_ids)
        self._extend_block_hashes()

    def _extend_block_hashes(self) -> None:
        if self._block_hasher is not None:
            self.block_hashes.extend(self._block_hasher(self))

    def __repr__(self) -> str:
        return f"Request({self.request_id}, {self.status.name}, computed {self.num_computed_tokens}/{self.num_tokens})"
