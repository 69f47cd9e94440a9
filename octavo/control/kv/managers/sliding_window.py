"""Groups in which a token reads itself and a fixed number of tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.control.kv.block_pool import BlockPool, KVCacheBlock
from octavo.control.kv.managers.group_manager import GroupManager
from octavo.words.kv_cache_spec import SlidingWindowSpec, cdiv


class SlidingWindowManager(GroupManager):
    """Gives back blocks that fell out of the window; a prefix is usable if the window at its end is cached."""

    prefix_of_hit_is_hit = False

    def __init__(self, spec: SlidingWindowSpec, group_id: int, pool: BlockPool, hash_block_size: int) -> None:
        super().__init__(spec, group_id, pool, hash_block_size)
        self._num_tokens_before = spec.sliding_window - 1

    def find_longest_hit(self, hashes: Sequence[bytes], max_tokens: int, alignment: int) -> list[KVCacheBlock]:
        """Search from the right for a run of blocks that fills the window, or that reaches position 0."""
        end = max_tokens // alignment * alignment // self.block_size
        per_alignment = alignment // self.block_size
        num_wanted = cdiv(self._num_tokens_before, self.block_size)
        run: list[KVCacheBlock] = []
        index = end
        while index > 0 and len(run) < num_wanted:
            index -= 1
            block = self._lookup(hashes, index)
            if block is not None:
                run.append(block)
                continue
            # The hit must end on an aligned border at or before the hole.
            end = index = index // per_alignment * per_alignment
            run.clear()
        num_null = end - len(run)
        return [self._pool.null_block] * num_null + run[::-1]

    def num_skipped_tokens(self, num_processed: int) -> int:
        return max(num_processed - self._num_tokens_before, 0)

    def next_release(self, num_released: int) -> int:
        return (num_released + 1) * self.block_size + self._num_tokens_before
