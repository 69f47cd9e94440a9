from __future__ import annotations

from octavo.control.kv.block_pool import BlockPool
from octavo.control.kv.managers.full import FullAttentionManager
from octavo.control.kv.managers.group_manager import NEVER
from tests.control.kv.parts import full, request_of


def cached_prefix(num_tokens, block_size=16, hash_block_size=16):
    """A manager in whose group the first ``num_tokens`` tokens 0, 1, 2 ... are cached, and their blocks."""
    pool = BlockPool(20)
    manager = FullAttentionManager(full(block_size), 0, pool, hash_block_size)
    request = request_of(range(num_tokens), hash_block_size=hash_block_size)
    held = manager.start([], 0)
    manager.allocate(held, num_tokens)
    manager.cache_full_blocks(held, request.block_hashes, num_tokens)
    return pool, manager, request.block_hashes, held


def ids(blocks):
    return [block.block_id for block in blocks]


def test_a_hit_goes_left_to_right_until_the_first_miss():
    pool, manager, hashes, held = cached_prefix(64)
    assert ids(manager.find_longest_hit(hashes, 64, 16)) == [1, 2, 3, 4]
    pool.forget(held.blocks[2])
    assert ids(manager.find_longest_hit(hashes, 64, 16)) == [1, 2]


def test_a_hit_is_cut_to_the_alignment():
    _, manager, hashes, _ = cached_prefix(48)
    assert ids(manager.find_longest_hit(hashes, 48, 32)) == [1, 2]


def test_a_hit_is_no_longer_than_asked():
    _, manager, hashes, _ = cached_prefix(48)
    assert ids(manager.find_longest_hit(hashes, 47, 16)) == [1, 2]
    assert manager.find_longest_hit(hashes, 15, 16) == []


def test_a_coarse_block_is_found_by_the_hash_at_its_last_fine_border():
    _, manager, hashes, held = cached_prefix(70, block_size=32, hash_block_size=16)
    assert [block.hashes for block in held.blocks] == [(hashes[1] + bytes(4),), (hashes[3] + bytes(4),), ()]
    assert ids(manager.find_longest_hit(hashes, 70, 32)) == [1, 2]


def test_blocks_of_another_group_are_not_found():
    pool, _, hashes, _ = cached_prefix(32)
    assert FullAttentionManager(full(), 1, pool, 16).find_longest_hit(hashes, 32, 16) == []


def test_nothing_is_ever_skipped():
    _, manager, _, held = cached_prefix(64)
    assert manager.num_skipped_tokens(10_000) == 0
    assert manager.next_release(0) == NEVER
    manager.release_skipped(held, 64)
    assert ids(held.blocks) == [1, 2, 3, 4]


def test_a_hit_on_the_free_list_is_needed_like_a_new_block():
    pool, manager, hashes, held = cached_prefix(64)
    hit = manager.find_longest_hit(hashes, 48, 16)
    assert manager.blocks_to_start(80, hit) == 2
    pool.free(held.blocks[1:])
    assert manager.blocks_to_start(80, hit) == 4


def test_a_request_that_has_room_needs_nothing():
    _, manager, _, held = cached_prefix(50)
    assert manager.blocks_to_grow(held, 64) == 0
    assert manager.blocks_to_grow(held, 65) == 1
    assert manager.blocks_to_grow(held, 10) == 0


def test_forgetting_from_a_token_unhashes_the_block_that_holds_it_and_later_ones():
    _, manager, hashes, held = cached_prefix(64)
    manager.forget(held, 40)
    assert ids(manager.find_longest_hit(hashes, 64, 16)) == [1, 2]
    assert held.num_cached == 2
