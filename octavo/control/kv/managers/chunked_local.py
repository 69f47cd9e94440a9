"""Groups in which a token reads only its own chunk of the sequence."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.control.kv.block_pool import BlockPool, KVCacheBlock
from octavo.control.kv.managers.group_manager import GroupManager
from octavo.words.kv_cache_spec import ChunkedLocalAttentionSpec, cdiv


class ChunkedLocalAttentionManager(GroupManager):
    """Gives back whole chunks; a prefix is usable if the part of its last chunk that it holds is cached.

    Earlier chunks count as computed whether they are cached or not, since no later token reads them.
    """

    prefix_of_hit_is_hit = False

    def __init__(self, spec: ChunkedLocalAttentionSpec, group_id: int, pool: BlockPool, hash_block_size: int) -> None:
        super().__init__(spec, group_id, pool, hash_block_size)
        self._chunk_size = spec.chunk_size

    def find_longest_hit(self, hashes: Sequence[bytes], max_tokens: int, alignment: int) -> list[KVCacheBlock]:
        length = max_tokens // alignment * alignment
        while True:
            first = self.num_skipped_tokens(length) // self.block_size
            hit = [self._pool.null_block] * first
            for index in range(first, length // self.block_size):
                block = self._lookup(hashes, index)
                if block is None:
                    break
                hit.append(block)
            found = len(hit) * self.block_size
            if found == length:
                return hit
            # Aligning may step back into the chunk before, which then has to be cached itself.
            length = found // alignment * alignment

    def num_skipped_tokens(self, num_processed: int) -> int:
        return num_processed // self._chunk_size * self._chunk_size

    def next_release(self, num_released: int) -> int:
        return cdiv((num_released + 1) * self.block_size, self._chunk_size) * self._chunk_size
