"""Groups in which every token is read until the end."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.control.kv.block_pool import KVCacheBlock
from octavo.control.kv.managers.group_manager import NEVER, GroupManager


class FullAttentionManager(GroupManager):
    """Keeps all blocks; a prefix is usable as far as every block of it is cached."""

    prefix_of_hit_is_hit = True

    def find_longest_hit(self, hashes: Sequence[bytes], max_tokens: int, alignment: int) -> list[KVCacheBlock]:
        hit: list[KVCacheBlock] = []
        for index in range(max_tokens // self.block_size):
            block = self._lookup(hashes, index)
            if block is None:
                break
            hit.append(block)
        del hit[len(hit) * self.block_size // alignment * alignment // self.block_size :]
        return hit

    def num_skipped_tokens(self, num_processed: int) -> int:
        return 0

    def next_release(self, num_released: int) -> int:
        return NEVER
