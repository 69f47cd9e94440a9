"""What the managers of all kinds of KV groups have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from octavo.control.kv.block_pool import BlockKey, BlockPool, KVCacheBlock, block_key_suffix
from octavo.words.kv_cache_spec import KVCacheSpec, cdiv

NEVER = 1 << 62
"""A number of tokens that no request reaches."""


class HeldBlocks:
    """One request's blocks in one group, in order of position; block i holds tokens from ``i * block_size`` on.

    ``num_cached`` leading blocks need no more caching, ``num_released`` leading ones were given back and are null.
    ``release_at`` is the number of processed tokens at which more can be given back.
    """

    __slots__ = ("blocks", "num_cached", "num_released", "release_at")

    def __init__(self, hit: list[KVCacheBlock], num_released: int, release_at: int) -> None:
        self.blocks = list(hit)
        self.num_cached = len(hit)
        self.num_released = num_released
        self.release_at = release_at


class GroupManager(ABC):
    """The rules of one KV group. It keeps no requests: the coordinator passes it their ``HeldBlocks``.

    A kind of attention says which leading tokens nobody reads any more, and what makes a cached prefix usable.
    """

    prefix_of_hit_is_hit: ClassVar[bool]
    """Whether every shorter prefix of a usable prefix is usable too, so that cutting one needs no new search."""

    def __init__(self, spec: KVCacheSpec, group_id: int, pool: BlockPool, hash_block_size: int) -> None:
        self.spec = spec
        self.block_size = spec.block_size
        self._pool = pool
        self._key_suffix = block_key_suffix(group_id)
        self._hashes_per_block = spec.block_size // hash_block_size

    @abstractmethod
    def find_longest_hit(self, hashes: Sequence[bytes], max_tokens: int, alignment: int) -> list[KVCacheBlock]:
        """Return the blocks of the longest usable cached prefix of at most ``max_tokens`` tokens.

        Its length is a multiple of ``alignment`` (itself one of the block size); blocks nobody will read are null.
        ``hashes`` has one entry per full hash block of the request.
        """

    @abstractmethod
    def num_skipped_tokens(self, num_processed: int) -> int:
        """How many leading tokens no token from position ``num_processed`` on attends to."""

    @abstractmethod
    def next_release(self, num_released: int) -> int:
        """The least number of processed tokens at which more than ``num_released`` blocks can be given back."""

    def blocks_to_start(self, num_tokens: int, hit: list[KVCacheBlock]) -> int:
        """Blocks that leave the free list when a new request gets room for ``num_tokens``, ``hit`` in front.

        A hit block that nobody holds stands on the free list, so it is counted like a new one.
        """
        num_free_hits = sum(1 for block in hit if block.ref_count == 0)
        return max(cdiv(num_tokens, self.block_size) - len(hit), 0) + num_free_hits

    def start(self, hit: list[KVCacheBlock], num_hit_tokens: int) -> HeldBlocks:
        """Open a new request's books with a prefix that ``find_longest_hit`` returned, and hold its blocks."""
        self._pool.touch(hit)
        num_released = self.num_skipped_tokens(num_hit_tokens) // self.block_size
        return HeldBlocks(hit, num_released, self.next_release(num_released))

    def fork(self, held: HeldBlocks, num_computed: int) -> tuple[HeldBlocks, list[tuple[int, int]]]:
        """Books that share the full blocks of the first ``num_computed`` tokens and own a copy of one that is begun.

        Returns the ids to copy, (source, destination): one pair or none.
        """
        num_full, num_begun = divmod(num_computed, self.block_size)
        shared = held.blocks[:num_full]
        self._pool.touch(shared)
        fork = HeldBlocks(shared, held.num_released, held.release_at)
        fork.num_cached = min(held.num_cached, num_full)
        if not num_begun:
            return fork, []
        fork.blocks += self._pool.allocate(1)
        return fork, [(held.blocks[num_full].block_id, fork.blocks[-1].block_id)]

    def blocks_to_grow(self, held: HeldBlocks, num_tokens: int) -> int:
        """Blocks that a request still lacks for ``num_tokens`` in all."""
        num_missing = cdiv(num_tokens, self.block_size) - len(held.blocks)
        return num_missing if num_missing > 0 else 0

    def allocate(self, held: HeldBlocks, num_tokens: int) -> list[KVCacheBlock]:
        """Append blocks until ``num_tokens`` have room, and return them."""
        new_blocks = self._pool.allocate(self.blocks_to_grow(held, num_tokens))
        held.blocks.extend(new_blocks)
        return new_blocks

    def cache_full_blocks(self, held: HeldBlocks, hashes: Sequence[bytes], num_tokens: int) -> None:
        """Make the blocks findable that the first ``num_tokens`` tokens fill."""
        num_full = num_tokens // self.block_size
        if num_full <= held.num_cached:
            return
        for index in range(held.num_cached, num_full):
            block = held.blocks[index]
            if block is not self._pool.null_block:
                self._pool.cache(block, self._key(hashes, index))
        held.num_cached = num_full

    def forget(self, held: HeldBlocks, from_token: int) -> None:
        """Make the blocks that hold ``from_token`` or later unfindable."""
        first = from_token // self.block_size
        for block in held.blocks[first : held.num_cached]:
            self._pool.forget(block)
        held.num_cached = min(held.num_cached, first)

    def release_skipped(self, held: HeldBlocks, num_processed: int) -> None:
        """Give back the blocks that nobody reads once ``num_processed`` tokens are done, and leave null blocks."""
        num_skipped = min(self.num_skipped_tokens(num_processed) // self.block_size, len(held.blocks))
        if num_skipped <= held.num_released:
            return
        dropped = held.blocks[held.num_released : num_skipped]
        held.blocks[held.num_released : num_skipped] = [self._pool.null_block] * len(dropped)
        held.num_released = num_skipped
        held.release_at = self.next_release(num_skipped)
        self._pool.free(reversed(dropped))

    def free(self, held: HeldBlocks) -> None:
        """Give back everything, the tail first."""
        self._pool.free(reversed(held.blocks))

    def quiet_until(self, held: HeldBlocks) -> int:
        """Most tokens (the new ones included) for which there is nothing to allocate, to cache or to release."""
        limit = len(held.blocks) * self.block_size
        if self._pool.enable_caching and held.num_cached < len(held.blocks):
            limit = (held.num_cached + 1) * self.block_size - 1
        # A step computes at least one token, so fewer than ``limit`` are processed when it is planned.
        return limit if limit < held.release_at else held.release_at

    def _lookup(self, hashes: Sequence[bytes], index: int) -> KVCacheBlock | None:
        """The cached block number ``index`` of a sequence with these hashes."""
        return self._pool.get_cached_block(self._key(hashes, index))

    def _key(self, hashes: Sequence[bytes], index: int) -> BlockKey:
        # The hash at a block's last fine border covers all tokens up to there.
        return hashes[(index + 1) * self._hashes_per_block - 1] + self._key_suffix
