"""How much KV cache a request needs: one formula, used when memory is planned and when requests are admitted.

Two formulas that differ would let a request start that can never finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.words.kv_cache_spec import KVCacheSpec


def max_blocks_per_request(specs: Sequence[KVCacheSpec], num_tokens: int, max_tokens_in_flight: int) -> int:
    """Most blocks that one request of ``num_tokens`` holds at once; ``specs`` has one entry per KV group."""
    return sum(spec.max_blocks_per_request(num_tokens, max_tokens_in_flight) for spec in specs)


def longest_length_that_fits(
    specs: Sequence[KVCacheSpec], num_usable_blocks: int, *, at_most: int, max_tokens_in_flight: int
) -> int:
    """Return the longest request, in tokens, that ``num_usable_blocks`` blocks can hold; 0 if none."""
    return largest_that(
        lambda length: max_blocks_per_request(specs, length, max_tokens_in_flight) <= num_usable_blocks, at_most
    )


def largest_that(holds: Callable[[int], bool], at_most: int) -> int:
    """Return the largest n in 1..at_most for which ``holds(n)``, or 0. What holds for n must hold below n."""
    low, high = 0, at_most
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
