"""All KV blocks of one engine: who holds them, which are free, and in which order they are handed out again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeAlias

from octavo.words.snapshot import BlockState

BlockKey: TypeAlias = bytes
"""A block hash followed by its 4-byte group id: the same tokens are cached once per group."""


def block_key_suffix(group_id: int) -> bytes:
    """The part of a BlockKey that names the group."""
    return group_id.to_bytes(4, "big")


class KVCacheBlock:
    """One block: its id, how many requests hold it, and the keys under which it can be found.

    A block on the free list may still carry keys: it is cached until it is handed out again. ``previous`` and
    ``following`` are links of the free list and belong to it.
    """

    __slots__ = ("block_id", "following", "hashes", "previous", "ref_count")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_count = 0
        self.hashes: tuple[BlockKey, ...] = ()
        self.previous: KVCacheBlock | None = None
        self.following: KVCacheBlock | None = None

    def __repr__(self) -> str:
        return f"KVCacheBlock({self.block_id}, refs {self.ref_count}, keys {len(self.hashes)})"


KVBlocks: TypeAlias = tuple[list[KVCacheBlock], ...]
"""Blocks in order of position, one list per KV group."""


class FreeBlockQueue:
    """Free blocks in the order they will be handed out: a ring of links, so that any block leaves in O(1)."""

    def __init__(self, blocks: Iterable[KVCacheBlock]) -> None:
        # The sentinel closes the ring: no link is None while a block is queued, and no end needs a special case.
        self._sentinel = sentinel = KVCacheBlock(-1)
        sentinel.previous = sentinel.following = sentinel
        self._size = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._size

    def append(self, block: KVCacheBlock) -> None:
        last = self._sentinel.previous
        assert last is not None
        self._insert(block, last, self._sentinel)

    def prepend(self, block: KVCacheBlock) -> None:
        first = self._sentinel.following
        assert first is not None
        self._insert(block, self._sentinel, first)

    def remove(self, block: KVCacheBlock) -> None:
        """Take out a queued block, wherever it stands."""
        previous, following = block.previous, block.following
        assert previous is not None and following is not None, "the block is not queued"
        previous.following = following
        following.previous = previous
        block.previous = block.following = None
        self._size -= 1

    def pop_first(self) -> KVCacheBlock:
        sentinel = self._sentinel
        first = sentinel.following
        assert first is not None
        if first is sentinel:
            raise IndexError("no free block is left")
        self.remove(first)
        return first

    def block_ids(self) -> list[int]:
        """Ids from first to last; for tests and logs."""
        ids = []
        block = self._sentinel.following
        while block is not None and block is not self._sentinel:
            ids.append(block.block_id)
            block = block.following
        return ids

    def _insert(self, block: KVCacheBlock, previous: KVCacheBlock, following: KVCacheBlock) -> None:
        block.previous, block.following = previous, following
        previous.following = following.previous = block
        self._size += 1


class BlockPool:
    """``num_blocks`` blocks, shared by all groups. Block 0 is the null block: it stands for tokens nobody needs.

    The null block is never free, never cached and never counted. A freed block without a key can serve no hit and
    is handed out next (its memory is still warm); a cached one goes to the back, so the oldest prefix is lost first.
    """

    def __init__(self, num_blocks: int, *, enable_caching: bool = True) -> None:
        if num_blocks < 1:
            raise ValueError(f"a pool needs at least the null block, got num_blocks={num_blocks}")
        self.num_blocks = num_blocks
        self.enable_caching = enable_caching
        self.null_block = KVCacheBlock(0)
        self.null_block.ref_count = 1
        self._blocks = [self.null_block, *(KVCacheBlock(block_id) for block_id in range(1, num_blocks))]
        self._free = FreeBlockQueue(self._blocks[1:])
        self._cached: dict[BlockKey, KVCacheBlock] = {}
        # Two requests may fill blocks with the same tokens at once. Both keep their block, since block tables only
        # ever grow; those after the first wait here to take its place.
        self._duplicates: dict[BlockKey, list[KVCacheBlock]] = {}

    @property
    def num_usable_blocks(self) -> int:
        return self.num_blocks - 1

    @property
    def num_free_blocks(self) -> int:
        return len(self._free)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that someone holds, 0..1."""
        return 1.0 - len(self._free) / self.num_usable_blocks if self.num_usable_blocks else 0.0

    @property
    def num_cached_keys(self) -> int:
        return len(self._cached)

    def free_block_ids(self) -> list[int]:
        """Ids of the free blocks in the order they will be handed out."""
        return self._free.block_ids()

    def states(self, *, every: int = 1) -> Iterator[BlockState]:
        """What every so many-th block is, in order of id and without the null block."""
        for block in islice(self._blocks, 1, None, every):
            if block.ref_count:
                yield BlockState.USED if block.ref_count == 1 else BlockState.SHARED
            else:
                yield BlockState.CACHED if block.hashes else BlockState.FREE

    def get_cached_block(self, key: BlockKey) -> KVCacheBlock | None:
        """Return a block cached under ``key``, held or free. ``touch`` it before anything else is allocated."""
        return self._cached.get(key)

    def allocate(self, num_blocks: int) -> list[KVCacheBlock]:
        """Hand out blocks from the front of the free list, each held once; what they cached is lost.

        Raises ValueError, and takes nothing, if there are not that many: callers check ``num_free_blocks`` first.
        """
        if num_blocks > len(self._free):
            raise ValueError(f"asked for {num_blocks} blocks, only {len(self._free)} are free")
        blocks = [self._free.pop_first() for _ in range(num_blocks)]
        for block in blocks:
            if block.hashes:
                self.forget(block)
            block.ref_count = 1
        return blocks

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Hold each block once more; free ones leave the free list. Null blocks are passed over."""
        for block in blocks:
            if block is self.null_block:
                continue
            if block.ref_count == 0:
                self._free.remove(block)
            block.ref_count += 1

    def free(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Let go of each block once, in the given order. Null blocks are passed over.

        Callers give a sequence's blocks in reverse: the tail of a prefix is worth less than its head.
        """
        for block in blocks:
            if block is self.null_block:
                continue
            assert block.ref_count > 0, f"block {block.block_id} was freed more often than taken"
            block.ref_count -= 1
            if block.ref_count > 0:
                continue
            if block.hashes:
                self._free.append(block)
            else:
                self._free.prepend(block)

    def cache(self, block: KVCacheBlock, key: BlockKey) -> None:
        """Make a held block findable under ``key``, beside those that already are."""
        assert block.ref_count > 0 and block is not self.null_block, "only held blocks are cached"
        if key in block.hashes:
            return
        block.hashes = (*block.hashes, key)
        if self._cached.setdefault(key, block) is not block:
            self._duplicates.setdefault(key, []).append(block)

    def forget(self, block: KVCacheBlock) -> None:
        """Drop all keys of a block; other blocks under the same keys stay findable."""
        for key in block.hashes:
            spares = self._duplicates.get(key)
            if spares is None:
                del self._cached[key]
                continue
            if self._cached[key] is block:
                self._cached[key] = spares.pop(0)
            else:
                spares.remove(block)
            if not spares:
                del self._duplicates[key]
        block.hashes = ()

    def reset(self) -> bool:
        """Drop every key if no block but the null block is held; otherwise do nothing and return False."""
        if len(self._free) != self.num_usable_blocks:
            return False
        for block in {block.block_id: block for block in self._all_cached()}.values():
            block.hashes = ()
        self._cached.clear()
        self._duplicates.clear()
        return True

    def _all_cached(self) -> Iterable[KVCacheBlock]:
        yield from self._cached.values()
        for spares in self._duplicates.values():
            yield from spares
