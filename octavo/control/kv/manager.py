"""The scheduler's view of the KV cache: slots for tokens, prefix hits, and nothing else.

Calls go down (coordinator, group managers, block pool) and never back.
"""

from __future__ import annotations

from collections.abc import Iterator

from octavo.control.kv.block_pool import BlockPool, KVBlocks
from octavo.control.kv.coordinator import KVCacheCoordinator
from octavo.control.request import Request
from octavo.words.kv_cache_spec import KVCacheConfig
from octavo.words.messages import PrefixCacheStats
from octavo.words.snapshot import BlockState

__all__ = ["KVBlocks", "KVCacheManager"]


class KVCacheManager:
    """Gives requests blocks and takes them back; finds prefixes that are already cached.

    The books change when a step is *scheduled*: blocks are cached under their hashes before the step has run. If
    the step fails for a request, ``forget`` takes that back. ``KVBlocks`` is a tuple with one list of blocks per
    KV group (empty lists where there is nothing), owned by this package: read it, hand it back, change nothing.
    """

    def __init__(self, config: KVCacheConfig, *, enable_caching: bool, max_num_batched_tokens: int) -> None:
        """``max_num_batched_tokens``: most tokens of one request in flight, drafts and steps in flight included."""
        self._pool = BlockPool(config.num_blocks, enable_caching=enable_caching)
        self._coordinator = KVCacheCoordinator(config, self._pool, max_tokens_in_flight=max_num_batched_tokens)
        self._enable_caching = enable_caching
        # Per request, the number of tokens up to which no group has anything to do: most decode steps end there.
        self._quiet_until: dict[str, int] = {}
        self._nothing: KVBlocks = tuple([] for _ in config.groups)
        self.no_block_ids: tuple[list[int], ...] = tuple([] for _ in config.groups)
        """What ``new_block_ids`` says where there are none: one shared object, read only."""
        self.stats = PrefixCacheStats()
        """Totals since start, one count per admission; a return after a preemption is not counted again."""
        self.max_tokens_that_fit: int = self._coordinator.longest_length_that_fits(config.max_model_len)
        """Longest request (prompt and output, at most max_model_len) that the whole cache can hold."""

    def get_computed_blocks(self, request: Request) -> tuple[KVBlocks, int]:
        """Return the longest cached prefix: its blocks and its length in tokens, at most ``num_tokens - 1``.

        Ask when ``num_computed_tokens`` is 0. Nothing is reserved: pass both to ``allocate_slots`` before any other
        allocation. Requests that want prompt logprobs always get nothing, since they need every position computed.
        """
        if not self._enable_caching or request.wants_prompt_logprobs:
            return self._nothing, 0
        return self._coordinator.find_longest_hit(request.block_hashes, request.num_tokens - 1)

    def has_slots(self, request: Request, num_new_tokens: int) -> bool:
        """Whether a request has room for so many more tokens and its books need no other change: so it mostly is."""
        return request.num_computed_tokens + num_new_tokens <= self._quiet_until.get(request.request_id, -1)

    def blocks_to_grow(self, request: Request, num_new_tokens: int) -> int:
        """Blocks that a request with slots lacks for so many more tokens."""
        if self.has_slots(request, num_new_tokens):
            return 0
        return self._coordinator.blocks_to_grow(request.request_id, request.num_computed_tokens + num_new_tokens)

    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        *,
        hit: KVBlocks | None = None,
        num_hit_tokens: int = 0,
        num_lookahead_tokens: int = 0,
        reserved_blocks: int = 0,
        whole_input: bool = False,
    ) -> KVBlocks | None:
        """Make room for ``num_new_tokens`` (at least 1, drafts included) after ``request.num_computed_tokens``.

        ``hit`` and ``num_hit_tokens`` come from ``get_computed_blocks`` and count as computed, so call this before
        adding them to ``num_computed_tokens``. ``num_lookahead_tokens`` are extra slots for drafts.
        ``reserved_blocks`` (the watermark) must stay free. ``whole_input`` also asks, for a request without blocks,
        that all of ``request.num_tokens`` could be held now: none is admitted only to be preempted half-way.

        Returns the new blocks (hits excluded; ``block_ids`` has all), or None: it cannot be had now, and nothing was
        taken. Blocks that fell out of attention windows are given back in either case.
        """
        if self.has_slots(request, num_hit_tokens + num_new_tokens + num_lookahead_tokens):
            return self._nothing

        request_id, books = request.request_id, self._coordinator
        num_computed = request.num_computed_tokens + num_hit_tokens
        total = num_computed + num_new_tokens + num_lookahead_tokens
        if request_id in self._quiet_until:
            # Placeholders are tokens in flight: drafts among them may yet be rejected, and the window moves back.
            books.release_skipped(request_id, num_computed - request.num_output_placeholders)
            num_needed = books.blocks_to_grow(request_id, total)
            if num_needed > max(self._pool.num_free_blocks - reserved_blocks, 0):
                return None
        else:
            hit = hit or self._nothing
            num_needed = books.blocks_to_start(total, hit)
            at_once = (
                max(num_needed, books.blocks_for_whole_input(request.num_tokens, hit)) if whole_input else num_needed
            )
            if at_once > max(self._pool.num_free_blocks - reserved_blocks, 0):
                return None
            books.start(request_id, hit, num_hit_tokens)
            self._count_lookup(request, num_hit_tokens)

        new_blocks = books.allocate(request_id, total) if num_needed > 0 else self._nothing
        # Up to the known tokens only: drafts and placeholders are never cached.
        num_known = min(num_computed + num_new_tokens, request.num_tokens) if self._enable_caching else 0
        self._quiet_until[request_id] = books.cache_full_blocks(request_id, request.block_hashes, num_known)
        return new_blocks

    def cache_computed(self, request: Request) -> None:
        """Make the blocks findable that are full of tokens which nobody knew when they were given slots."""
        if self._enable_caching:
            num_known = min(request.num_computed_tokens, request.num_tokens)
            self._coordinator.cache_full_blocks(request.request_id, request.block_hashes, num_known)

    def fork(self, request: Request, fork: Request) -> list[tuple[int, int]] | None:
        """Let ``fork``, which holds nothing, share what ``request`` has computed; a begun block is copied.

        Returns the ids to copy before the next step, (source, destination), or None: there is no room, and nothing was
        taken.
        """
        num_computed = request.num_computed_tokens
        if self._coordinator.blocks_to_fork(num_computed) > self._pool.num_free_blocks:
            return None
        copies = self._coordinator.fork(request.request_id, fork.request_id, num_computed)
        self._quiet_until[fork.request_id] = self._coordinator.quiet_until(fork.request_id)
        return copies

    def free(self, request: Request) -> None:
        """Give back all blocks of a finished or preempted request; unknown requests are ignored.

        Cached blocks stay findable until they are handed out again, the end of the sequence first.
        """
        if self._quiet_until.pop(request.request_id, None) is not None:
            self._coordinator.free(request.request_id)

    def forget(self, request: Request, from_token: int) -> None:
        """Drop the hashes of this request's blocks that hold ``from_token`` or later: the step that filled them failed.

        Call it before ``free``. Requests that already share such a block keep it.
        """
        if request.request_id in self._quiet_until:
            self._coordinator.forget(request.request_id, from_token)
            self._quiet_until[request.request_id] = self._coordinator.quiet_until(request.request_id)

    def block_ids(self, request_id: str) -> tuple[list[int], ...]:
        """Ids of all blocks the request holds, one list per group; 0 where a block fell out of the window.

        Raises KeyError for a request that holds nothing.
        """
        return self._coordinator.block_ids(request_id)

    def new_block_ids(self, blocks: KVBlocks) -> tuple[list[int], ...]:
        """Ids of blocks that ``allocate_slots`` returned."""
        if blocks is self._nothing:
            return self.no_block_ids
        return tuple([block.block_id for block in group] for group in blocks)

    def can_ever_fit(self, num_tokens: int) -> bool:
        """Whether a request of this many tokens fits an otherwise empty cache."""
        return self._coordinator.max_blocks_per_request(num_tokens) <= self._pool.num_usable_blocks

    def reset_prefix_cache(self) -> bool:
        """Forget every cached prefix; False, and nothing done, while any request holds a block."""
        return self._pool.reset()

    @property
    def usage(self) -> float:
        """Share of the blocks that requests hold, 0..1; the null block does not count."""
        return self._pool.usage

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free_blocks

    @property
    def num_usable_blocks(self) -> int:
        return self._pool.num_usable_blocks

    def block_states(self, *, every: int = 1) -> Iterator[BlockState]:
        """What every so many-th block is, in order of id and without the null block."""
        return self._pool.states(every=every)

    def num_blocks_of(self, request_id: str) -> int:
        """How many blocks a request holds, over all groups; 0 for one that holds none."""
        if request_id not in self._quiet_until:
            return 0
        return sum(block_id != 0 for group in self.block_ids(request_id) for block_id in group)

    def _count_lookup(self, request: Request, num_hit_tokens: int) -> None:
        if self._enable_caching and not request.wants_prompt_logprobs and request.first_scheduled_time is None:
            self.stats.requests += 1
            self.stats.queries += request.num_tokens
            self.stats.hits += num_hit_tokens
