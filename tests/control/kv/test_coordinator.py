from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.control.kv.block_pool import BlockPool, block_key_suffix
from octavo.control.kv.coordinator import KVCacheCoordinator
from octavo.words.kv_cache_spec import ChunkedLocalAttentionSpec, SlidingWindowSpec
from tests.control.kv.parts import chunked, config_of, full, request_of, window


def coordinator_with(specs, cached):
    """A coordinator whose group g has cached the blocks ``cached[g]`` (of its own block size) of tokens 0, 1, 2 ..."""
    config = config_of(100, *specs)
    pool = BlockPool(100)
    hashes = request_of(range(96), hash_block_size=config.hash_block_size).block_hashes
    for group_id, (spec, indices) in enumerate(zip(specs, cached, strict=True)):
        for index in indices:
            (block,) = pool.allocate(1)
            fine = (index + 1) * spec.block_size // config.hash_block_size - 1
            pool.cache(block, hashes[fine] + block_key_suffix(group_id))
    return KVCacheCoordinator(config, pool, max_tokens_in_flight=8192)


def hit_length(specs, cached, max_tokens=95):
    coordinator = coordinator_with(specs, cached)
    hashes = request_of(range(96), hash_block_size=config_of(2, *specs).hash_block_size).block_hashes
    hit, length = coordinator.find_longest_hit(hashes, max_tokens)
    assert [len(blocks) * spec.block_size for blocks, spec in zip(hit, specs, strict=True)] == [length] * len(specs)
    return length


def test_without_groups_there_is_no_hit_and_everything_fits():
    coordinator = coordinator_with([], [])
    assert coordinator.find_longest_hit([], 100) == ((), 0)
    assert coordinator.max_blocks_per_request(1_000_000) == 0


def test_the_full_group_bounds_the_window_group():
    assert hit_length([full(4), window(8, 4)], [range(3), range(6)]) == 12


def test_a_window_that_shortens_the_hit_only_trims_the_full_group():
    assert hit_length([full(4), window(8, 4)], [range(6), [1, 2]]) == 12


def test_groups_that_shorten_each_other_in_turn_reach_a_fixed_point():
    # Candidates 24 -> 20 (first window) -> 12 (second) -> 8 (first again) -> 8: both can serve it.
    windows = [window(5, 4), window(5, 4, num_kv_heads=2)]
    assert hit_length(windows, [[4, 1], [5, 2, 1]], max_tokens=24) == 8


def test_a_group_that_has_nothing_cached_leaves_nothing():
    assert hit_length([full(4), window(8, 4)], [range(6), []]) == 0


def test_a_hit_is_a_multiple_of_all_block_sizes():
    assert hit_length([full(4), full(8)], [range(7), range(7)], max_tokens=31) == 24


def test_groups_do_not_find_each_others_blocks():
    assert hit_length([full(4), full(4, num_kv_heads=2)], [range(4), []]) == 0


def usable(spec, cached, length):
    """The definition: whoever computes token ``length`` next finds every token it reads, in whole blocks."""
    first = 0
    if isinstance(spec, SlidingWindowSpec):
        first = max(length - spec.sliding_window + 1, 0)
    elif isinstance(spec, ChunkedLocalAttentionSpec):
        first = length // spec.chunk_size * spec.chunk_size
    return all(i in cached for i in range(first // spec.block_size, length // spec.block_size))


any_spec = st.one_of(
    st.builds(full, st.sampled_from([4, 8])),
    st.builds(window, st.integers(1, 30), st.sampled_from([4, 8])),
    st.builds(chunked, st.integers(1, 30), st.sampled_from([4, 8])),
)
mostly_cached = st.sets(st.integers(0, 23), max_size=8).map(lambda missing: set(range(24)) - missing)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(any_spec, mostly_cached), min_size=1, max_size=4), st.integers(0, 95))
def test_the_hit_is_the_longest_length_that_every_group_can_serve(groups, max_tokens):
    specs = [spec for spec, _ in groups]
    cached = [{i for i in indices if (i + 1) * spec.block_size <= 96} for spec, indices in groups]
    step = config_of(2, *specs).scheduler_block_size
    candidates = range(0, max_tokens + 1, step)
    expected = max(length for length in candidates if all(map(usable, specs, cached, [length] * len(specs))))
    assert hit_length(specs, cached, max_tokens) == expected


@pytest.mark.parametrize("num_tokens", [1, 4, 5, 40])
def test_a_request_may_hold_the_sum_over_its_groups(num_tokens):
    coordinator = coordinator_with([full(4), full(8)], [[], []])
    assert coordinator.max_blocks_per_request(num_tokens) == -(-num_tokens // 4) + -(-num_tokens // 8)
