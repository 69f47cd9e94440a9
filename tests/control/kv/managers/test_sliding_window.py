from __future__ import annotations

import pytest

from octavo.control.kv.block_pool import BlockPool
from octavo.control.kv.managers.sliding_window import SlidingWindowManager
from tests.control.kv.parts import request_of, window

HASHES = request_of(range(80), hash_block_size=4).block_hashes


def manager_with(cached_indices, sliding_window, block_size=4):
    """A manager that has cached the given blocks of HASHES; block i has id i + 1 and is free."""
    pool = BlockPool(22)
    manager = SlidingWindowManager(window(sliding_window, block_size), 0, pool, 4)
    blocks = pool.allocate(20)
    for index in cached_indices:
        pool.cache(blocks[index], HASHES[(index + 1) * (block_size // 4) - 1] + bytes(4))
    pool.free(blocks)
    return manager


def hit_ids(manager, max_tokens, alignment=4):
    return [block.block_id for block in manager.find_longest_hit(HASHES, max_tokens, alignment)]


def test_a_hit_needs_only_the_window_and_has_null_holes_before_it():
    manager = manager_with([3, 4], sliding_window=8)  # ceil(7 / 4) = 2 blocks
    assert hit_ids(manager, 20) == [0, 0, 0, 4, 5]


def test_the_search_goes_right_to_left_past_runs_that_are_too_short():
    manager = manager_with([0, 1, 2, 5, 7], sliding_window=9)  # ceil(8 / 4) = 2 blocks
    assert hit_ids(manager, 32) == [0, 2, 3]


def test_a_run_that_reaches_position_0_may_be_shorter_than_the_window():
    manager = manager_with([0, 1], sliding_window=100)
    assert hit_ids(manager, 32) == [1, 2]


def test_a_window_that_is_not_cached_is_no_hit_although_earlier_blocks_are():
    assert hit_ids(manager_with([1, 3], sliding_window=8), 20) == []


def test_a_window_of_one_token_needs_no_block_at_all():
    assert hit_ids(manager_with([], sliding_window=1), 20) == [0] * 5


def test_a_hit_ends_on_an_aligned_border_even_if_a_longer_one_is_cached():
    manager = manager_with([1, 2, 3, 4], sliding_window=8)
    assert hit_ids(manager, 20, alignment=8) == [0, 0, 3, 4]
    assert hit_ids(manager_with([2, 3, 4], sliding_window=9), 20, alignment=8) == [0, 0, 3, 4]
    assert hit_ids(manager_with([3, 4], sliding_window=9), 20, alignment=8) == []


@pytest.mark.parametrize(
    ("num_processed", "num_skipped", "num_null"),
    [(0, 0, 0), (7, 0, 0), (8, 1, 0), (10, 3, 0), (11, 4, 1), (14, 7, 1), (15, 8, 2), (40, 33, 5)],
)
def test_blocks_wholly_before_the_window_of_the_next_token_are_given_back(num_processed, num_skipped, num_null):
    pool = BlockPool(10)
    manager = SlidingWindowManager(window(8, 4), 0, pool, 4)
    held = manager.start([], 0)
    manager.allocate(held, 20)
    assert manager.num_skipped_tokens(num_processed) == num_skipped
    manager.release_skipped(held, num_processed)
    assert [block.block_id for block in held.blocks] == [0] * num_null + [1, 2, 3, 4, 5][num_null:]
    assert pool.num_free_blocks == 4 + num_null


def test_a_window_never_moves_back_so_a_late_smaller_count_changes_nothing():
    pool = BlockPool(10)
    manager = SlidingWindowManager(window(8, 4), 0, pool, 4)
    held = manager.start([], 0)
    manager.allocate(held, 20)
    manager.release_skipped(held, 15)
    manager.release_skipped(held, 11)
    assert [block.block_id for block in held.blocks] == [0, 0, 3, 4, 5]


def test_cached_blocks_that_leave_the_window_stay_findable():
    pool = BlockPool(10)
    manager = SlidingWindowManager(window(8, 4), 0, pool, 4)
    held = manager.start([], 0)
    manager.allocate(held, 20)
    manager.cache_full_blocks(held, HASHES, 20)
    manager.release_skipped(held, 20)
    assert pool.free_block_ids() == [6, 7, 8, 9, 3, 2, 1]
    assert hit_ids(manager, 12) == [0, 2, 3]


def test_the_next_release_is_the_first_count_that_gives_back_one_more_block():
    manager = SlidingWindowManager(window(8, 4), 0, BlockPool(2), 4)
    for num_released in range(5):
        at = manager.next_release(num_released)
        assert manager.num_skipped_tokens(at) // 4 == num_released + 1
        assert manager.num_skipped_tokens(at - 1) // 4 == num_released
