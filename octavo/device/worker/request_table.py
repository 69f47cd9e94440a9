"""The requests a worker knows, each in a slot it keeps from its first step to its last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.device.worker.block_table import BlockTables
from octavo.words.messages import NewRequestData, SchedulerOutput

FIRST_COLUMNS = 256
NO_SECOND_TEXT = np.iinfo(np.int64).max
"""Where the second text of a request begins that has none."""


class SlotHolder(Protocol):
    """Keeps something for each request, by slot."""

    def add(self, slot: int, request: NewRequestData) -> None: ...

    def remove(self, slot: int) -> None: ...


class RequestTable:
    """Token ids and counts of every request, one row per slot; tells its holders who comes and goes.

    token_ids:  [max_num_requests, columns] int32: prompt, then output. Columns double when a request outgrows them, so
                memory follows the longest request and not the longest one possible. The drafts of a step lie behind
                the tokens of their request until it is done, and are not counted.
    num_tokens, num_prompt_tokens, num_computed_tokens: [max_num_requests] int64.
    second_text_at: [max_num_requests] int64; where in a pair of texts the second begins.
    """

    def __init__(self, max_num_requests: int, blocks: BlockTables, holders: Sequence[SlotHolder] = ()) -> None:
        self.token_ids: npt.NDArray[np.int32] = np.zeros((max_num_requests, FIRST_COLUMNS), dtype=np.int32)
        self.num_tokens = np.zeros(max_num_requests, dtype=np.int64)
        self.num_prompt_tokens = np.zeros(max_num_requests, dtype=np.int64)
        self.num_computed_tokens = np.zeros(max_num_requests, dtype=np.int64)
        self.second_text_at = np.full(max_num_requests, NO_SECOND_TEXT)
        self.blocks = blocks
        self._holders = (blocks, *holders)
        self._slots: dict[str, int] = {}
        self._free = list(range(max_num_requests))[::-1]

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._slots

    def update(self, output: SchedulerOutput) -> None:
        """Take in what the scheduler decided. Who ended goes first: a newcomer may need the slot."""
        for request_id in (*output.finished_request_ids, *output.preempted_request_ids):
            self.remove(request_id)
        for request in output.new_requests:
            self.add(request)
        for known in output.cached_requests:
            slot = self._slots[known.request_id]
            self.num_computed_tokens[slot] = known.num_computed_tokens
            self.blocks.append(slot, known.new_block_ids)
        for request_id, drafts in output.draft_token_ids.items():
            self._lay_out(self._slots[request_id], drafts)

    def add(self, request: NewRequestData) -> int:
        """Give a request a slot. It must not have one."""
        assert request.request_id not in self._slots, f"request {request.request_id} was added twice"
        slot = self._free.pop()
        self._slots[request.request_id] = slot
        tokens = request.prompt_token_ids + request.output_token_ids
        self.reserve(len(tokens) + 1)
        self.token_ids[slot, : len(tokens)] = tokens
        self.num_tokens[slot] = len(tokens)
        self.num_prompt_tokens[slot] = len(request.prompt_token_ids)
        self.num_computed_tokens[slot] = request.num_computed_tokens
        self.second_text_at[slot] = _second_text_at(request)
        for holder in self._holders:
            holder.add(slot, request)
        return slot

    def remove(self, request_id: str) -> None:
        """Free a request's slot; one that never ran here has none."""
        slot = self._slots.pop(request_id, None)
        if slot is None:
            return
        for holder in self._holders:
            holder.remove(slot)
        self._free.append(slot)

    def clear(self) -> None:
        """Free all slots."""
        for request_id in list(self._slots):
            self.remove(request_id)

    def append(self, slots: Iterable[int], token_ids: Iterable[Sequence[int]]) -> None:
        """Add tokens to each of these slots."""
        for slot, ids in zip(slots, token_ids, strict=True):
            start = int(self.num_tokens[slot])
            end = start + len(ids)
            self.reserve(end)
            self.token_ids[slot, start:end] = ids
            self.num_tokens[slot] = end

    def slots(self, request_ids: Iterable[str]) -> list[int]:
        """The slots of these requests, in this order."""
        return [self._slots[request_id] for request_id in request_ids]

    def _lay_out(self, slot: int, draft_token_ids: Sequence[int]) -> None:
        start = int(self.num_tokens[slot])
        end = start + len(draft_token_ids)
        self.reserve(end)
        self.token_ids[slot, start:end] = draft_token_ids

    def reserve(self, num_columns: int) -> None:
        """Make room for so many tokens of each request."""
        rows, columns = self.token_ids.shape
        if num_columns <= columns:
            return
        grown = np.zeros((rows, max(num_columns, 2 * columns)), dtype=np.int32)
        grown[:, :columns] = self.token_ids
        self.token_ids = grown


def _second_text_at(request: NewRequestData) -> int:
    pooling = request.sampling.pooling
    return NO_SECOND_TEXT if pooling is None or pooling.second_text_at is None else pooling.second_text_at
