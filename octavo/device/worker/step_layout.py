"""Laying out a decided step in its arrays: which tokens, at which positions, in which cache slots, and what is sampled.

``NumpyLayout`` is the reference; the native one does the same in one call.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from octavo.device.worker.block_table import BlockTable
from octavo.device.worker.request_table import RequestTable


class StepArrays:
    """Where steps are written to; of each array the first numbers are a step's.

    By token, int64: token_ids, positions. By request: query_start_loc (one more) and seq_lens (tokens computed after
    the step), int32; slots and num_computed (tokens computed before the step), int64. By sampled request, one all of
    whose known tokens are computed by the step: sampled (its number among the requests) and num_drafts, int64. By row
    that goes on to logits, int64: logit_rows (its token's number), logit_slots, logit_positions (of the token that
    follows it), logit_drafts (how many tokens before that are drafts).
    """

    def __init__(self, max_num_requests: int, max_num_tokens: int) -> None:
        self.token_ids, self.positions = np.zeros((2, max_num_tokens), dtype=np.int64)
        self.query_start_loc = np.zeros(max_num_requests + 1, dtype=np.int32)
        self.seq_lens = np.zeros(max_num_requests, dtype=np.int32)
        self.slots, self.num_computed = np.zeros((2, max_num_requests), dtype=np.int64)
        self.sampled, self.num_drafts = np.zeros((2, max_num_requests), dtype=np.int64)
        logits = np.zeros((4, max_num_tokens), dtype=np.int64)
        self.logit_rows, self.logit_slots, self.logit_positions, self.logit_drafts = logits


class GroupArrays:
    """A KV group's table of blocks, and where steps are written to.

    block_table: [max_num_requests, most kernel blocks] int32; slot_mapping: [max_num_tokens] int64.
    """

    def __init__(self, table: BlockTable, *, max_num_requests: int, max_num_tokens: int, max_model_len: int) -> None:
        self.table = table
        self.block_table = np.zeros((max_num_requests, table.max_kernel_blocks(max_model_len)), dtype=np.int32)
        self.slot_mapping = np.zeros(max_num_tokens, dtype=np.int64)


class StepCounts(NamedTuple):
    """How much of the arrays a step fills; ``max_seq_len`` is the longest of its requests after it."""

    num_tokens: int
    max_seq_len: int
    num_sampled: int
    num_logit_rows: int


class StepLayout(Protocol):
    """Writes steps into the arrays it was made with."""

    def write(self, table: RequestTable, slots: Sequence[int], num_scheduled: Sequence[int]) -> StepCounts:
        """A step of so many tokens, at least 1, of each of the requests in these slots."""
        ...


class NumpyLayout:
    """The reference; nothing loops over tokens."""

    def __init__(self, arrays: StepArrays, groups: Sequence[GroupArrays]) -> None:
        self._arrays = arrays
        self._groups = tuple(groups)

    def write(self, table: RequestTable, slots: Sequence[int], num_scheduled: Sequence[int]) -> StepCounts:
        arrays, num_requests = self._arrays, len(slots)
        slot_of, counts = np.array(slots, dtype=np.int64), np.array(num_scheduled, dtype=np.int64)
        num_computed, ends = table.num_computed_tokens[slot_of], counts.cumsum()
        seq_lens, num_tokens = num_computed + counts, int(ends[-1])
        # Token t of request r is at position num_computed[r] + t - the tokens of those before it.
        slot_of_token = slot_of.repeat(counts)
        positions = np.arange(num_tokens) + (num_computed - ends + counts).repeat(counts)
        arrays.token_ids[:num_tokens] = table.token_ids[slot_of_token, positions]
        arrays.positions[:num_tokens] = positions
        arrays.query_start_loc[1 : num_requests + 1] = ends
        arrays.seq_lens[:num_requests] = seq_lens
        arrays.slots[:num_requests] = slot_of
        arrays.num_computed[:num_requests] = num_computed
        for group in self._groups:
            blocks = group.table.kernel_blocks(slot_of, int(seq_lens.max()))
            group.block_table[:num_requests, : blocks.shape[1]] = blocks
            group.slot_mapping[:num_tokens] = group.table.slot_mapping(slot_of_token, positions)
        num_sampled, num_rows = self._write_sampled(table, slot_of, seq_lens, ends)
        return StepCounts(num_tokens, int(seq_lens.max()), num_sampled, num_rows)

    def _write_sampled(
        self,
        table: RequestTable,
        slots: npt.NDArray[np.int64],
        seq_lens: npt.NDArray[np.int64],
        ends: npt.NDArray[np.int64],
    ) -> tuple[int, int]:
        arrays = self._arrays
        num_beyond = seq_lens - table.num_tokens[slots]
        sampled = (num_beyond >= 0).nonzero()[0]
        num_drafts = num_beyond[sampled]
        counts = num_drafts + 1
        firsts, num_rows = counts.cumsum() - counts, int(counts.sum())
        drafts = np.arange(num_rows) - firsts.repeat(counts)
        arrays.sampled[: len(sampled)] = sampled
        arrays.num_drafts[: len(sampled)] = num_drafts
        arrays.logit_drafts[:num_rows] = drafts
        arrays.logit_rows[:num_rows] = (ends[sampled] - counts).repeat(counts) + drafts
        arrays.logit_slots[:num_rows] = row_slots = slots[sampled].repeat(counts)
        arrays.logit_positions[:num_rows] = table.num_tokens[row_slots] + drafts
        return len(sampled), num_rows


class NativeLayout:
    """As NumpyLayout, by ``library.StepLayout``."""

    def __init__(self, library: ModuleType, arrays: StepArrays, groups: Sequence[GroupArrays]) -> None:
        tokens = (arrays.token_ids, arrays.positions)
        requests = (arrays.query_start_loc, arrays.seq_lens, arrays.slots, arrays.num_computed)
        logit_rows = (arrays.logit_rows, arrays.logit_slots, arrays.logit_positions, arrays.logit_drafts)
        self._kept = arrays, tuple(groups)
        self.native: Any = library.StepLayout(
            [address_of(array) for array in tokens],
            [address_of(array) for array in (*requests, arrays.sampled, arrays.num_drafts)],
            [address_of(array) for array in logit_rows],
            [_group(group) for group in groups],
        )
        self._tables = [group.table for group in groups]
        self._addresses = Addresses()

    def write(self, table: RequestTable, slots: Sequence[int], num_scheduled: Sequence[int]) -> StepCounts:
        return StepCounts(*self.native.write(*self.known(table), slots, num_scheduled))

    def known(self, table: RequestTable) -> tuple[Any, ...]:
        """Where native code finds all requests: their tokens, numbers of these, and blocks by group."""
        of = self._addresses.of
        return (
            of("token_ids", table.token_ids),
            table.token_ids.shape[1],
            of("num_tokens", table.num_tokens),
            of("num_computed", table.num_computed_tokens),
            [(of(name, each.rows), each.rows.shape[1]) for name, each in enumerate(self._tables)],
        )


class Addresses:
    """Where arrays lie, by a name for each; asked again only when there is another array: asking takes a while."""

    def __init__(self) -> None:
        self._known: dict[object, tuple[npt.NDArray[Any], int]] = {}

    def of(self, name: object, array: npt.NDArray[Any]) -> int:
        known = self._known.get(name)
        if known is None or known[0] is not array:
            known = self._known[name] = array, address_of(array)
        return known[1]


def address_of(array: npt.NDArray[Any]) -> int:
    """Where a contiguous array begins."""
    assert array.flags.c_contiguous, "arrays that kernels see are contiguous"
    address: int = array.ctypes.data
    return address


def _group(group: GroupArrays) -> tuple[int, int, int, int, int]:
    table = group.table
    split = table.block_size // table.kernel_block_size
    table_at, slots_at = address_of(group.block_table), address_of(group.slot_mapping)
    return table.block_size, split, table_at, group.block_table.shape[1], slots_at
