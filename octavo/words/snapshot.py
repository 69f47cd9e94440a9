"""What an engine core looks like at one moment, for people who watch it."""

from __future__ import annotations

import enum

import msgspec


class BlockState(enum.IntEnum):
    """What a KV block is: FREE is empty, CACHED is free but findable, USED is held by one request, SHARED by more."""

    FREE = 0
    CACHED = 1
    USED = 2
    SHARED = 3


class BlockMap(msgspec.Struct, kw_only=True):
    """The block pool without its null block, as cells in order of block id.

    A cell stands for ``blocks_per_cell`` blocks and shows the first of them. ``runs`` are the cells, run-length
    encoded: pairs of a BlockState and how many cells in a row are in it.
    """

    num_blocks: int
    num_free: int
    blocks_per_cell: int
    runs: list[tuple[int, int]]


class RequestProgress(msgspec.Struct, kw_only=True):
    """An unfinished request: tokens it has, tokens that are computed, and the most it may come to.

    ``num_blocks`` counts the KV blocks it holds, over all groups. ``arrived_at``: seconds since 1970.
    """

    request_id: str
    status: str
    arrived_at: float
    num_prompt_tokens: int
    num_output_tokens: int
    num_computed_tokens: int
    num_cached_tokens: int
    max_total_tokens: int
    num_preemptions: int
    num_blocks: int


class StepTimes(msgspec.Struct, kw_only=True):
    """A step: how long each phase took, and its tokens. ``seconds`` maps schedule, execute, sample and update.

    A prefill token belongs to a request that got several in this step, a decode token is a request's only one,
    once in each run of the model of a burst.
    """

    step_id: int
    seconds: dict[str, float]
    num_prefill_tokens: int
    num_decode_tokens: int


class EngineSnapshot(msgspec.Struct, kw_only=True):
    """Bounded in size: ``requests`` are the first that run and then wait (``num_requests`` tells how many there are),
    ``steps`` the last of those that were timed since the snapshot before."""

    blocks: BlockMap
    num_requests: int
    requests: list[RequestProgress]
    steps: list[StepTimes]
    token_budget: int
    max_num_seqs: int
