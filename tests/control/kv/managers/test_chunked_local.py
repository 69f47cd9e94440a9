from __future__ import annotations

import pytest

from octavo.control.kv.block_pool import BlockPool
from octavo.control.kv.managers.chunked_local import ChunkedLocalAttentionManager
from tests.control.kv.parts import chunked, request_of

HASHES = request_of(range(80), hash_block_size=4).block_hashes


def manager_with(cached_indices, chunk_size):
    """A manager that has cached the given blocks of HASHES; block i has id i + 1 and is free."""
    pool = BlockPool(22)
    manager = ChunkedLocalAttentionManager(chunked(chunk_size, 4), 0, pool, 4)
    blocks = pool.allocate(20)
    for index in cached_indices:
        pool.cache(blocks[index], HASHES[index] + bytes(4))
    pool.free(blocks)
    return manager


def hit_ids(manager, max_tokens, alignment=4):
    return [block.block_id for block in manager.find_longest_hit(HASHES, max_tokens, alignment)]


def test_chunks_before_the_last_one_count_as_computed():
    assert hit_ids(manager_with([4, 5], chunk_size=16), 28) == [0, 0, 0, 0, 5, 6]


def test_without_any_cached_block_the_hit_is_the_whole_earlier_chunks():
    assert hit_ids(manager_with([], chunk_size=16), 44) == [0] * 8


def test_a_prefix_that_ends_at_a_chunk_border_needs_no_block():
    assert hit_ids(manager_with([], chunk_size=16), 32) == [0] * 8


def test_a_block_that_straddles_a_chunk_border_must_be_cached():
    assert hit_ids(manager_with([], chunk_size=10), 28) == [0] * 5  # 28 is in chunk [20, 30): blocks 5, 6
    assert hit_ids(manager_with([5], chunk_size=10), 28) == [0] * 5 + [6]
    assert hit_ids(manager_with([2], chunk_size=10), 19) == [0, 0, 3]  # chunk [10, 20) begins inside block 2
    assert hit_ids(manager_with([], chunk_size=10), 19) == []  # back to 8 tokens, in chunk [0, 10): block 0 is missing


def test_stepping_back_to_an_aligned_border_needs_the_chunk_before():
    assert hit_ids(manager_with([], chunk_size=12), 15, alignment=8) == []
    assert hit_ids(manager_with([0, 1], chunk_size=12), 15, alignment=8) == [1, 2]


@pytest.mark.parametrize(("num_processed", "num_null"), [(0, 0), (15, 0), (16, 4), (17, 4), (31, 4), (32, 8)])
def test_whole_chunks_are_given_back_when_the_next_one_begins(num_processed, num_null):
    pool = BlockPool(12)
    manager = ChunkedLocalAttentionManager(chunked(16, 4), 0, pool, 4)
    held = manager.start([], 0)
    manager.allocate(held, 40)
    manager.release_skipped(held, num_processed)
    assert [block.block_id for block in held.blocks] == [0] * num_null + list(range(1, 11))[num_null:]


@pytest.mark.parametrize("chunk_size", [4, 6, 16, 20])
def test_the_next_release_is_the_first_count_that_gives_back_one_more_block(chunk_size):
    manager = ChunkedLocalAttentionManager(chunked(chunk_size, 4), 0, BlockPool(2), 4)
    for num_released in range(8):
        at = manager.next_release(num_released)
        assert manager.num_skipped_tokens(at) // 4 > num_released
        assert manager.num_skipped_tokens(at - 1) // 4 <= num_released
