from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from octavo.control.kv.block_pool import BlockPool, FreeBlockQueue, KVCacheBlock, block_key_suffix


def ids(blocks):
    return [block.block_id for block in blocks]


def cached_pool(num_blocks, num_cached):
    """A pool whose blocks 1..num_cached are held and cached under b"1", b"2" ..."""
    pool = BlockPool(num_blocks)
    blocks = pool.allocate(num_cached)
    for block in blocks:
        pool.cache(block, str(block.block_id).encode())
    return pool, blocks


def test_a_queue_gives_blocks_in_order_and_any_block_can_leave_it():
    blocks = [KVCacheBlock(i) for i in range(5)]
    queue = FreeBlockQueue(blocks)
    queue.remove(blocks[2])
    queue.prepend(blocks[2])
    queue.remove(blocks[4])
    assert queue.block_ids() == [2, 0, 1, 3]
    assert len(queue) == 4
    assert ids(queue.pop_first() for _ in range(4)) == [2, 0, 1, 3]
    with pytest.raises(IndexError, match="no free block"):
        queue.pop_first()
    assert (len(queue), queue.block_ids()) == (0, [])


def test_block_0_is_never_handed_out_and_never_counted():
    pool = BlockPool(4)
    assert pool.null_block.block_id == 0
    assert (pool.num_usable_blocks, pool.num_free_blocks, pool.usage) == (3, 3, 0.0)
    assert ids(pool.allocate(3)) == [1, 2, 3]
    assert (pool.num_free_blocks, pool.usage) == (0, 1.0)


def test_a_pool_of_the_null_block_alone_is_never_used():
    pool = BlockPool(1)
    assert (pool.num_free_blocks, pool.usage) == (0, 0.0)
    assert pool.reset()


def test_a_pool_without_the_null_block_is_refused():
    with pytest.raises(ValueError, match="num_blocks=0"):
        BlockPool(0)


def test_usage_is_the_share_of_usable_blocks_held():
    pool = BlockPool(11)
    pool.allocate(4)
    assert pool.usage == pytest.approx(0.4)


def test_asking_for_too_many_blocks_takes_none():
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="asked for 4 blocks, only 3 are free"):
        pool.allocate(4)
    assert pool.free_block_ids() == [1, 2, 3]


def test_freed_blocks_without_a_hash_go_to_the_front():
    pool = BlockPool(6)
    blocks = pool.allocate(3)
    pool.free(reversed(blocks))
    assert pool.free_block_ids() == [1, 2, 3, 4, 5]


def test_freed_blocks_with_a_hash_go_to_the_back_the_tail_first():
    pool, blocks = cached_pool(6, 3)
    pool.free(reversed(blocks))
    assert pool.free_block_ids() == [4, 5, 3, 2, 1]


def test_a_freed_cached_block_can_be_found_until_it_is_handed_out():
    pool, blocks = cached_pool(4, 1)
    pool.free(blocks)
    assert pool.get_cached_block(b"1") is blocks[0]
    assert ids(pool.allocate(2)) == [2, 3]
    assert pool.get_cached_block(b"1") is blocks[0]
    assert ids(pool.allocate(1)) == [1]
    assert pool.get_cached_block(b"1") is None
    assert blocks[0].hashes == ()


def test_touching_a_free_block_takes_it_off_the_free_list():
    pool, blocks = cached_pool(5, 2)
    pool.free(reversed(blocks))
    pool.touch(blocks[:1])
    assert pool.free_block_ids() == [3, 4, 2]
    pool.touch(blocks[:1])
    assert blocks[0].ref_count == 2
    pool.free(blocks[:1])
    assert pool.free_block_ids() == [3, 4, 2]
    pool.free(blocks[:1])
    assert pool.free_block_ids() == [3, 4, 2, 1]


def test_null_blocks_are_passed_over():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.touch([pool.null_block, block])
    pool.free([pool.null_block, block, pool.null_block])
    assert block.ref_count == 1
    assert pool.null_block.ref_count == 1
    assert pool.free_block_ids() == [2]


def test_blocks_with_one_hash_take_over_from_each_other_in_order():
    pool = BlockPool(6)
    first, second, third, fourth = pool.allocate(4)
    for block in (first, second, third, fourth):
        pool.cache(block, b"same")
    assert pool.get_cached_block(b"same") is first
    pool.forget(first)
    assert pool.get_cached_block(b"same") is second
    pool.forget(third)
    pool.forget(second)
    assert pool.get_cached_block(b"same") is fourth
    pool.forget(fourth)
    assert pool.get_cached_block(b"same") is None
    assert pool.num_cached_keys == 0


def test_a_block_may_carry_several_hashes_and_loses_all_at_once():
    pool = BlockPool(3)
    (block,) = pool.allocate(1)
    pool.cache(block, b"x")
    pool.cache(block, b"y")
    pool.cache(block, b"x")
    assert block.hashes == (b"x", b"y")
    pool.forget(block)
    assert pool.get_cached_block(b"x") is pool.get_cached_block(b"y") is None


def test_reset_is_refused_while_a_block_is_held_and_empties_the_map_when_idle():
    pool, blocks = cached_pool(4, 2)
    assert not pool.reset()
    pool.free(blocks[:1])
    assert not pool.reset()
    assert pool.num_cached_keys == 2
    pool.free(blocks[1:])
    assert pool.reset()
    assert pool.num_cached_keys == 0
    assert [block.hashes for block in blocks] == [(), ()]


def test_group_suffixes_are_four_bytes_and_differ():
    assert block_key_suffix(0) == b"\0\0\0\0"
    assert block_key_suffix(258) == b"\0\0\1\2"


def test_freeing_a_block_nobody_holds_is_our_own_bug():
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(AssertionError, match="block 1 was freed more often than taken"):
        pool.free(blocks)


NUM_BLOCKS = 7
KEYS = [bytes([i]) for i in range(4)]


class PoolAgainstModel(RuleBasedStateMachine):
    """Random operations on a pool and on a model of plain lists must agree on every block and on the free order."""

    def __init__(self):
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.free_ids = list(range(1, NUM_BLOCKS))
        self.refs = dict.fromkeys(range(1, NUM_BLOCKS), 0)
        self.keys = {block_id: [] for block_id in range(1, NUM_BLOCKS)}
        self.found_first = {key: [] for key in KEYS}
        self.blocks = {}

    def drop_keys(self, block_id):
        for key in self.keys[block_id]:
            self.found_first[key].remove(block_id)
        self.keys[block_id] = []

    def held_ids(self):
        return [block_id for block_id, count in self.refs.items() if count]

    @precondition(lambda self: self.free_ids)
    @rule(data=st.data())
    def allocate(self, data):
        count = data.draw(st.integers(1, len(self.free_ids)))
        blocks = self.pool.allocate(count)
        expected, self.free_ids = self.free_ids[:count], self.free_ids[count:]
        assert ids(blocks) == expected
        for block in blocks:
            self.blocks[block.block_id] = block
            self.refs[block.block_id] = 1
            self.drop_keys(block.block_id)

    @precondition(lambda self: self.held_ids())
    @rule(data=st.data())
    def free(self, data):
        chosen = data.draw(st.lists(st.sampled_from(self.held_ids()), min_size=1, unique=True))
        self.pool.free([self.pool.null_block, *(self.blocks[block_id] for block_id in chosen)])
        for block_id in chosen:
            self.refs[block_id] -= 1
            if self.refs[block_id] == 0:
                self.free_ids.insert(len(self.free_ids) if self.keys[block_id] else 0, block_id)

    @precondition(lambda self: self.held_ids())
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def cache(self, data, key):
        block_id = data.draw(st.sampled_from(self.held_ids()))
        self.pool.cache(self.blocks[block_id], key)
        if key not in self.keys[block_id]:
            self.keys[block_id].append(key)
            self.found_first[key].append(block_id)

    @rule(key=st.sampled_from(KEYS))
    def touch_hit(self, key):
        block = self.pool.get_cached_block(key)
        if block is not None:
            self.pool.touch([block])
            if self.refs[block.block_id] == 0:
                self.free_ids.remove(block.block_id)
            self.refs[block.block_id] += 1

    @precondition(lambda self: self.blocks)
    @rule(data=st.data())
    def forget(self, data):
        block_id = data.draw(st.sampled_from(sorted(self.blocks)))
        self.pool.forget(self.blocks[block_id])
        self.drop_keys(block_id)

    @rule()
    def reset(self):
        idle = not self.held_ids()
        assert self.pool.reset() == idle
        if idle:
            for block_id in self.keys:
                self.drop_keys(block_id)

    @invariant()
    def pool_equals_model(self):
        assert self.pool.free_block_ids() == self.free_ids
        assert self.pool.num_free_blocks == len(self.free_ids)
        for block_id, block in self.blocks.items():
            assert (block.ref_count, list(block.hashes)) == (self.refs[block_id], self.keys[block_id])
        for key, holders in self.found_first.items():
            found = self.pool.get_cached_block(key)
            assert (found.block_id if found else None) == (holders[0] if holders else None)


PoolAgainstModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolAgainstModel = PoolAgainstModel.TestCase
