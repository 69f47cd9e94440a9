"""Which blocks hold each request's keys and values: one table per KV group."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from octavo.words.messages import NewRequestData

FIRST_COLUMNS = 16


class BlockTable:
    """One KV group's block ids by slot.

    A block of the manager may be several *kernel blocks*, the size a backend computes with: block b is kernel blocks
    b * n .. b * n + n - 1, which leaves every token in the same place of the cache.
    """

    def __init__(self, max_num_requests: int, block_size: int, kernel_block_size: int) -> None:
        assert block_size % kernel_block_size == 0, "a block is a whole number of kernel blocks"
        self.block_size = block_size
        self.kernel_block_size = kernel_block_size
        self._block_ids: npt.NDArray[np.int32] = np.zeros((max_num_requests, FIRST_COLUMNS), dtype=np.int32)
        self._num_blocks = [0] * max_num_requests

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """[max_num_requests, columns]: the blocks of each slot; another array once these do not suffice."""
        return self._block_ids

    def append(self, slot: int, block_ids: Sequence[int]) -> None:
        """Add blocks behind those of the slot."""
        start = self._num_blocks[slot]
        end = start + len(block_ids)
        if end > start:
            self._reserve(end)
            self._block_ids[slot, start:end] = block_ids
            self._num_blocks[slot] = end

    def clear(self, slot: int) -> None:
        """Forget the slot's blocks; what is left of them is the null block, for whoever reads too far."""
        self._block_ids[slot, : self._num_blocks[slot]] = 0
        self._num_blocks[slot] = 0

    def max_kernel_blocks(self, max_num_tokens: int) -> int:
        """Kernel blocks of a request of so many tokens."""
        return -(-max_num_tokens // self.block_size) * (self.block_size // self.kernel_block_size)

    def kernel_blocks(self, slots: npt.NDArray[np.int64], max_num_tokens: int) -> npt.NDArray[np.int32]:
        """[R, enough for max_num_tokens] int32: the kernel blocks of these slots."""
        num_blocks = min(-(-max_num_tokens // self.block_size), self._block_ids.shape[1])
        block_ids = self._block_ids[slots, :num_blocks]
        per_block = self.block_size // self.kernel_block_size
        if per_block == 1:
            return block_ids
        split = block_ids[:, :, None] * per_block + np.arange(per_block, dtype=np.int32)
        return split.reshape(len(slots), num_blocks * per_block)

    def slot_mapping(self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """[T] int64: where in the cache each token lies. slots and positions are both [T]."""
        columns, offsets = np.divmod(positions, self.block_size)
        return self._block_ids[slots, columns] * np.int64(self.block_size) + offsets

    def block_ids(self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """[T] int32: the manager's block that holds each token. slots and positions are both [T]."""
        return self._block_ids[slots, positions // self.block_size]

    def _reserve(self, num_columns: int) -> None:
        rows, columns = self._block_ids.shape
        if num_columns <= columns:
            return
        grown = np.zeros((rows, max(num_columns, 2 * columns)), dtype=np.int32)
        grown[:, :columns] = self._block_ids
        self._block_ids = grown


class BlockTables:
    """The block tables of all KV groups, in the order of the groups; follows the request table's slots."""

    def __init__(self, tables: Sequence[BlockTable]) -> None:
        self.tables = tuple(tables)

    def add(self, slot: int, request: NewRequestData) -> None:
        self.append(slot, request.block_ids)

    def append(self, slot: int, block_ids: tuple[list[int], ...]) -> None:
        """Add new blocks, one list per group."""
        for table, ids in zip(self.tables, block_ids, strict=True):
            table.append(slot, ids)

    def remove(self, slot: int) -> None:
        for table in self.tables:
            table.clear(slot)
