"""All KV groups of one engine as one: for no group, one group or many."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.control.kv.block_pool import BlockPool, KVBlocks, KVCacheBlock
from octavo.control.kv.capacity import longest_length_that_fits, max_blocks_per_request
from octavo.control.kv.managers.group_manager import NEVER, GroupManager, HeldBlocks
from octavo.control.kv.managers.table import make_group_manager
from octavo.words.kv_cache_spec import KVCacheConfig


class KVCacheCoordinator:
    """Keeps each request's books, one ``HeldBlocks`` beside its manager per group, and does everything in all groups.

    Blocks of all groups come from one pool, so what one group takes no other gets: hits of all groups are held
    before any group allocates.
    """

    def __init__(self, config: KVCacheConfig, pool: BlockPool, *, max_tokens_in_flight: int) -> None:
        self._specs = [group.spec for group in config.groups]
        self._managers = [
            make_group_manager(spec, group_id, pool, config.hash_block_size)
            for group_id, spec in enumerate(self._specs)
        ]
        # Groups whose hits need no second search go first: they bound the search of the others.
        self._scan_order = sorted(
            range(len(self._managers)), key=lambda group_id: not self._managers[group_id].prefix_of_hit_is_hit
        )
        self._alignment = config.scheduler_block_size
        self._hash_block_size = config.hash_block_size
        self._num_usable_blocks = pool.num_usable_blocks
        self._max_tokens_in_flight = max_tokens_in_flight
        self._books: dict[str, list[tuple[GroupManager, HeldBlocks]]] = {}

    def max_blocks_per_request(self, num_tokens: int) -> int:
        """Most blocks that a request of this length holds at once, over all groups."""
        return max_blocks_per_request(self._specs, num_tokens, self._max_tokens_in_flight)

    def longest_length_that_fits(self, at_most: int) -> int:
        """The longest request, in tokens, that the whole pool can hold."""
        return longest_length_that_fits(
            self._specs, self._num_usable_blocks, at_most=at_most, max_tokens_in_flight=self._max_tokens_in_flight
        )

    def find_longest_hit(self, hashes: Sequence[bytes], max_tokens: int) -> tuple[KVBlocks, int]:
        """Return the longest prefix that every group can serve, and its length in tokens.

        A group may only shorten the candidate; it is passed around until no group does. The length is a multiple
        of every group's block size.
        """
        if not self._managers:
            return (), 0
        length = min(max_tokens, len(hashes) * self._hash_block_size) // self._alignment * self._alignment
        hits: list[list[KVCacheBlock] | None] = [None] * len(self._managers)
        while True:
            candidate = length
            for group_id in self._scan_order:
                length = self._shorten(hits, group_id, hashes, length)
            if length == candidate:
                return tuple(hit or [] for hit in hits), length

    def _shorten(
        self, hits: list[list[KVCacheBlock] | None], group_id: int, hashes: Sequence[bytes], length: int
    ) -> int:
        """Make the group's hit at most ``length`` tokens long and return its new length."""
        manager, hit = self._managers[group_id], hits[group_id]
        num_blocks = length // manager.block_size
        if hit is None or (len(hit) > num_blocks and not manager.prefix_of_hit_is_hit):
            hits[group_id] = hit = manager.find_longest_hit(hashes, length, self._alignment)
        del hit[num_blocks:]
        return len(hit) * manager.block_size

    def blocks_to_start(self, num_tokens: int, hit: KVBlocks) -> int:
        """Blocks that leave the free list when a new request gets room for ``num_tokens``, ``hit`` in front."""
        return sum(
            manager.blocks_to_start(num_tokens, blocks) for manager, blocks in zip(self._managers, hit, strict=True)
        )

    def blocks_to_grow(self, request_id: str, num_tokens: int) -> int:
        """Blocks that the request still lacks for ``num_tokens`` in all."""
        total = 0
        for manager, held in self._books[request_id]:
            total += manager.blocks_to_grow(held, num_tokens)
        return total

    def blocks_for_whole_input(self, num_tokens: int, hit: KVBlocks) -> int:
        """Blocks that leave the free list until all of a new request is computed, counting windows at their peak."""
        total = 0
        for manager, blocks in zip(self._managers, hit, strict=True):
            peak = manager.spec.max_blocks_per_request(num_tokens, self._max_tokens_in_flight)
            total += min(manager.blocks_to_start(num_tokens, blocks), peak)
        return total

    def start(self, request_id: str, hit: KVBlocks, num_hit_tokens: int) -> None:
        """Open the books of a new request, and hold the hits of all groups."""
        self._books[request_id] = [
            (manager, manager.start(blocks, num_hit_tokens))
            for manager, blocks in zip(self._managers, hit, strict=True)
        ]

    def allocate(self, request_id: str, num_tokens: int) -> KVBlocks:
        """Append blocks in every group until ``num_tokens`` have room; returns the new ones."""
        return tuple([manager.allocate(held, num_tokens) for manager, held in self._books[request_id]])

    def cache_full_blocks(self, request_id: str, hashes: Sequence[bytes], num_tokens: int) -> int:
        """Make the blocks findable that the first ``num_tokens`` tokens fill; returns ``quiet_until``."""
        quiet_until = NEVER
        for manager, held in self._books[request_id]:
            manager.cache_full_blocks(held, hashes, num_tokens)
            quiet_until = min(quiet_until, manager.quiet_until(held))
        return quiet_until

    def release_skipped(self, request_id: str, num_processed: int) -> None:
        """Give back blocks outside every window once ``num_processed`` tokens are done."""
        for manager, held in self._books[request_id]:
            if num_processed >= held.release_at:
                manager.release_skipped(held, num_processed)

    def quiet_until(self, request_id: str) -> int:
        """Most tokens for which no group has anything to do."""
        return min((manager.quiet_until(held) for manager, held in self._books[request_id]), default=NEVER)

    def forget(self, request_id: str, from_token: int) -> None:
        """Make the request's blocks unfindable that hold ``from_token`` or later."""
        for manager, held in self._books[request_id]:
            manager.forget(held, from_token)

    def blocks_to_fork(self, num_computed: int) -> int:
        """Blocks that a fork of so many tokens needs: a copy in each group where the last one is not full."""
        return sum(num_computed % manager.block_size > 0 for manager in self._managers)

    def fork(self, request_id: str, fork_id: str, num_computed: int) -> list[tuple[int, int]]:
        """Open books for a fork of a request; the ids to copy, (source, destination)."""
        copies: list[tuple[int, int]] = []
        books = self._books[fork_id] = []
        for manager, held in self._books[request_id]:
            fork, pairs = manager.fork(held, num_computed)
            books.append((manager, fork))
            copies += pairs
        return copies

    def free(self, request_id: str) -> None:
        """Give back everything the request holds."""
        for manager, held in self._books.pop(request_id):
            manager.free(held)

    def block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Ids of the request's blocks, one list per group."""
        return tuple([block.block_id for block in held.blocks] for _, held in self._books[request_id])
