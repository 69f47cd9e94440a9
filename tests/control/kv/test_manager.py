from __future__ import annotations

import pytest

from octavo.control.kv.capacity import max_blocks_per_request
from octavo.words.sampling_params import SamplingParams
from tests.control.kv.parts import admit, chunked, compute, decode, full, manager_of, request_of, window


def free_ids(manager):
    return manager._pool.free_block_ids()


def test_prompts_that_share_48_tokens_share_three_blocks():
    manager = manager_of(11, full())
    first = request_of([*range(48), *[100] * 7], "a")
    assert admit(manager, first) == 0
    assert manager.block_ids("a") == ([1, 2, 3, 4],)

    second = request_of([*range(48), *[200] * 5], "b")
    hit, num_hit_tokens = manager.get_computed_blocks(second)
    assert num_hit_tokens == 48
    new = manager.allocate_slots(second, 5, hit=hit, num_hit_tokens=48)
    assert manager.new_block_ids(new) == ([5],)
    assert manager.block_ids("b") == ([1, 2, 3, 5],)
    assert [block.ref_count for block in hit[0]] == [2, 2, 2]
    assert manager.usage == pytest.approx(0.5)

    manager.free(first)
    assert free_ids(manager) == [4, 6, 7, 8, 9, 10]
    manager.free(second)
    assert free_ids(manager) == [5, 4, 6, 7, 8, 9, 10, 3, 2, 1]
    assert (manager.usage, manager.num_free_blocks) == (0.0, 10)


def test_hits_survive_until_their_blocks_are_handed_out_the_tail_first():
    manager = manager_of(11, full())
    first = request_of(range(55), "a")
    admit(manager, first)
    manager.free(first)
    assert free_ids(manager) == [4, 5, 6, 7, 8, 9, 10, 3, 2, 1]
    big = request_of([7] * 127, "big", hash_block_size=16)
    admit(manager, big)  # 8 blocks: all seven without a hash, then block 3
    assert manager.block_ids("big") == ([4, 5, 6, 7, 8, 9, 10, 3],)
    assert manager.get_computed_blocks(request_of(range(55), "b"))[1] == 32


@pytest.mark.parametrize(("num_tokens", "num_hit"), [(32, 16), (64, 48), (16, 0), (1, 0), (33, 32), (65, 64)])
def test_at_least_one_token_of_a_cached_prompt_is_always_computed(num_tokens, num_hit):
    manager = manager_of(20, full())
    first = request_of(range(num_tokens), "a")
    admit(manager, first)
    manager.free(first)
    assert admit(manager, request_of(range(num_tokens), "b")) == num_hit


def test_a_recomputed_last_block_gets_a_second_block_with_the_same_hash():
    manager = manager_of(20, full())
    admit(manager, request_of(range(32), "a"))
    admit(manager, request_of(range(32), "b"))
    assert (manager.block_ids("a"), manager.block_ids("b")) == (([1, 2],), ([1, 3],))
    third = request_of(range(33), "c")
    assert admit(manager, third) == 32
    assert manager.block_ids("c") == ([1, 2, 4],)


def test_salts_isolate_and_equal_salts_share():
    manager = manager_of(20, full())
    admit(manager, request_of(range(40), "a", cache_salt="alice"))
    assert admit(manager, request_of(range(40), "b", cache_salt="bob")) == 0
    assert admit(manager, request_of(range(40), "c")) == 0
    assert admit(manager, request_of(range(40), "d", cache_salt="alice")) == 32


def test_a_request_that_wants_prompt_logprobs_reads_no_cache_but_fills_it():
    manager = manager_of(20, full())
    params = SamplingParams(prompt_logprobs=0)
    assert admit(manager, request_of(range(40), "a", params=params)) == 0
    assert admit(manager, request_of(range(40), "b", params=params)) == 0
    assert admit(manager, request_of(range(40), "c")) == 32


def test_without_caching_nothing_is_hit_and_freed_blocks_are_reused_at_once():
    manager = manager_of(6, full(), enable_caching=False)
    first = request_of(range(40), "a", hash_block_size=None)
    admit(manager, first)
    decode(manager, first, range(30))
    assert manager.block_ids("a") == ([1, 2, 3, 4, 5],)
    manager.free(first)
    assert free_ids(manager) == [1, 2, 3, 4, 5]
    assert admit(manager, request_of(range(40), "b", hash_block_size=None)) == 0
    assert manager.stats.queries == 0


def test_a_decode_step_with_room_in_the_last_block_returns_the_shared_nothing():
    manager = manager_of(20, full())
    request = request_of(range(17), "a")
    admit(manager, request)
    answers = []
    for _ in range(16):
        request.append_output_tokens([5])
        answers.append(manager.allocate_slots(request, 1))
        request.num_computed_tokens += 1
    assert [manager.new_block_ids(answer) for answer in answers] == [([],)] * 15 + [([3],)]
    assert len({id(manager.new_block_ids(answer)) for answer in answers[:15]}) == 1


def test_a_block_filled_by_decoding_is_cached_the_moment_it_is_full():
    manager = manager_of(20, full())
    request = request_of(range(17), "a")
    admit(manager, request)
    decode(manager, request, range(17, 31))
    assert manager.get_computed_blocks(request_of(range(40), "b"))[1] == 16
    decode(manager, request, [31])
    assert manager.get_computed_blocks(request_of(range(40), "b"))[1] == 32


def test_drafts_get_slots_but_are_never_cached():
    manager = manager_of(20, full())
    request = request_of(range(31), "a")
    admit(manager, request)
    request.append_output_tokens([31])
    request.draft_token_ids = [32, 33, 34]
    assert manager.new_block_ids(manager.allocate_slots(request, 4)) == ([3],)
    assert manager.get_computed_blocks(request_of(range(40), "b"))[1] == 32  # token 31 is known, the drafts are not
    request.append_output_tokens(range(32, 47))
    request.num_computed_tokens = 32  # all drafts were rejected; others came in their place
    compute(manager, request, 15)
    assert manager._pool.num_cached_keys == 2


def test_tokens_that_are_still_placeholders_are_not_cached():
    manager = manager_of(20, full())
    request = request_of(range(31), "a")
    admit(manager, request)
    request.num_output_placeholders = 1
    compute(manager, request, 1)  # the 32nd token has a slot before anybody knows it
    assert manager.get_computed_blocks(request_of(range(40), "b"))[1] == 16
    request.append_output_tokens([31, 32])
    compute(manager, request, 1)
    assert manager.get_computed_blocks(request_of(range(40), "b"))[1] == 32


def test_lookahead_slots_are_allocated_and_kept_for_the_next_step():
    manager = manager_of(20, full())
    request = request_of(range(14), "a")
    manager.allocate_slots(request, 14, num_lookahead_tokens=4)
    request.num_computed_tokens = 14
    assert manager.block_ids("a") == ([1, 2],)
    assert manager.new_block_ids(manager.allocate_slots(request, 4)) == ([],)


def test_none_means_nothing_was_taken():
    manager = manager_of(4, full())
    admit(manager, request_of(range(20), "a"))
    second = request_of(range(100, 120), "b")
    assert manager.allocate_slots(second, 20) is None
    assert manager.num_free_blocks == 1
    with pytest.raises(KeyError):
        manager.block_ids("b")
    manager.free(second)
    assert manager.num_free_blocks == 1


def test_hit_blocks_on_the_free_list_count_as_needed():
    manager = manager_of(6, full())
    first = request_of(range(48), "a")
    admit(manager, first)
    manager.free(first)
    holder = request_of([9] * 32, "h")
    admit(manager, holder)  # takes the two blocks without a hash; blocks 1, 2, 3 are free and cached
    second = request_of([*range(48), 1, 2], "b")
    hit, num_hit_tokens = manager.get_computed_blocks(second)
    assert (num_hit_tokens, manager.num_free_blocks) == (48, 3)
    assert manager.allocate_slots(second, 2, hit=hit, num_hit_tokens=48) is None  # 3 hits and 1 new, 3 free
    assert free_ids(manager) == [3, 2, 1]
    manager.free(holder)
    assert manager.allocate_slots(second, 2, hit=hit, num_hit_tokens=48) is not None


def test_hits_of_all_groups_are_held_before_any_group_allocates():
    manager = manager_of(5, full(), full(num_kv_heads=2))
    first, holder = request_of(range(16), "a"), request_of(range(100, 116), "h")
    admit(manager, first)
    admit(manager, holder)
    manager.free(first)
    second = request_of(range(17), "b")
    hit, num_hit_tokens = manager.get_computed_blocks(second)
    assert (num_hit_tokens, free_ids(manager)) == (16, [1, 2])
    assert manager.allocate_slots(second, 1, hit=hit, num_hit_tokens=16) is None  # 2 hits and 2 new, 2 free
    manager.free(holder)
    assert free_ids(manager) == [1, 2, 3, 4]  # the first group's new block would be 2, the second group's hit
    assert manager.allocate_slots(second, 1, hit=hit, num_hit_tokens=16) is not None
    assert manager.block_ids("b") == ([1, 3], [2, 4])


def test_the_watermark_stays_free():
    manager = manager_of(6, full())
    request = request_of(range(40), "a")
    assert manager.allocate_slots(request, 40, reserved_blocks=3) is None
    assert manager.allocate_slots(request, 40, reserved_blocks=2) is not None
    request.num_computed_tokens = 40
    request.append_output_tokens(range(40, 48))
    for num_new in (1, 8):  # there is room already, also when a block fills
        assert manager.allocate_slots(request, num_new, reserved_blocks=5) is not None


def test_whole_input_refuses_a_prompt_whose_end_would_not_fit():
    manager = manager_of(6, full())
    assert manager.allocate_slots(request_of(range(81), "a"), 16, whole_input=True) is None
    assert manager.allocate_slots(request_of(range(81), "a"), 16) is not None
    assert manager.num_free_blocks == 4


def test_whole_input_counts_a_window_only_at_its_peak():
    manager = manager_of(6, window(8, 4), max_num_batched_tokens=8)  # ceil(15 / 4) + 1 = 5 blocks
    request = request_of(range(200), "a", hash_block_size=4)
    assert manager.allocate_slots(request, 8, whole_input=True) is not None
    request.num_computed_tokens = 8
    while request.num_computed_tokens < 200:
        compute(manager, request, 8)
    assert manager.block_ids("a")[0][:46] == [0] * 46
    smaller = manager_of(5, window(8, 4), max_num_batched_tokens=8)
    assert smaller.allocate_slots(request_of(range(200), "a", hash_block_size=4), 8, whole_input=True) is None


def test_blocks_outside_the_window_are_given_back_before_new_ones_are_needed():
    manager = manager_of(4, window(5, 4), max_num_batched_tokens=4)
    request = request_of(range(4), "a", hash_block_size=4)
    admit(manager, request)
    for start in range(4, 40, 4):
        request.append_output_tokens(range(start, start + 4))
        compute(manager, request, 4)
    assert [len([i for i in group if i]) for group in manager.block_ids("a")] == [2]
    assert manager.num_free_blocks == 1


def test_window_blocks_are_given_back_even_when_the_answer_is_none():
    manager = manager_of(4, window(5, 4))
    request = request_of(range(12), "a", hash_block_size=4)
    admit(manager, request)
    request.append_output_tokens(range(100, 120))
    assert manager.allocate_slots(request, 20) is None
    assert manager.block_ids("a") == ([0, 0, 3],)


def test_a_window_moves_by_processed_tokens_not_by_drafts_that_may_be_rejected():
    manager = manager_of(12, window(5, 4))
    request = request_of(range(8), "a", hash_block_size=4)
    admit(manager, request)
    request.num_output_placeholders = 4
    request.num_computed_tokens = 12  # four of them in flight
    manager.allocate_slots(request, 1)
    assert manager.block_ids("a") == ([0, 2, 3, 4],)  # 8 processed: token 4 is still read by token 8
    request.num_output_placeholders = 0
    manager.allocate_slots(request, 4)
    assert manager.block_ids("a") == ([0, 0, 3, 4],)


def test_a_window_hit_starts_with_null_blocks():
    manager = manager_of(20, full(4), window(6, 4))
    first = request_of(range(24), "a", hash_block_size=4)
    admit(manager, first)
    decode(manager, first, [24])
    manager.free(first)
    second = request_of(range(24), "b", hash_block_size=4)
    assert admit(manager, second) == 20
    full_ids, window_ids = manager.block_ids("b")
    assert 0 not in full_ids
    assert [bool(block_id) for block_id in window_ids] == [False, False, False, True, True, True]


STEP_PATTERNS = {"decode": [1] * 70, "chunks": [7] * 12, "drafts": [3, 1, 4, 1, 5, 9, 2, 6] * 3}


@pytest.mark.parametrize("pattern", STEP_PATTERNS)
@pytest.mark.parametrize(
    "specs",
    [[full(4)], [window(6, 4)], [window(1, 4)], [chunked(10, 4)], [full(8), window(9, 4), chunked(16, 4)]],
    ids=["full", "window", "window of one", "chunked", "three groups"],
)
def test_books_are_exact_after_every_step_although_most_steps_do_nothing(specs, pattern):
    manager = manager_of(200, *specs)
    request = request_of(range(13), "a", hash_block_size=4)
    num_hit_tokens = admit(manager, request)  # 12 for a window of one: nobody reads those tokens
    for num_new in STEP_PATTERNS[pattern]:
        before = request.num_computed_tokens
        request.append_output_tokens(range(num_new))
        compute(manager, request, num_new)
        num_keys = 0
        for group_manager, ids in zip(manager._coordinator._managers, manager.block_ids("a"), strict=True):
            size = group_manager.block_size
            assert len(ids) == -(-request.num_computed_tokens // size)
            num_null = group_manager.num_skipped_tokens(before) // size
            assert [i == 0 for i in ids] == [True] * num_null + [False] * (len(ids) - num_null)
            num_keys += request.num_computed_tokens // size - num_hit_tokens // size
        assert manager._pool.num_cached_keys == num_keys


@pytest.mark.parametrize("in_flight", [1, 3, 8, 64])
@pytest.mark.parametrize("spec", [window(6, 4), window(1, 4), window(33, 4), chunked(10, 4), chunked(16, 4)])
def test_no_request_ever_holds_more_than_the_formula_says(spec, in_flight):
    manager = manager_of(200, spec, max_num_batched_tokens=in_flight)
    request = request_of(range(150), "a", hash_block_size=4)
    most = 0
    while request.num_computed_tokens < 150:
        compute(manager, request, min(in_flight, 150 - request.num_computed_tokens))
        most = max(most, sum(1 for block_id in manager.block_ids("a")[0] if block_id))
    assert most <= max_blocks_per_request([spec], 150, in_flight)


def test_capacity_at_run_time_is_the_capacity_at_start_up():
    manager = manager_of(41, full(), max_model_len=2048)
    assert manager.max_tokens_that_fit == 640
    assert manager.can_ever_fit(640)
    assert not manager.can_ever_fit(641)


def test_a_request_of_exactly_the_usable_tokens_runs_and_one_more_block_cannot_be_had():
    manager = manager_of(41, full(), max_model_len=2048)
    request = request_of(range(640), "a")
    admit(manager, request)
    assert manager.usage == 1.0
    request.append_output_tokens([1])
    assert manager.allocate_slots(request, 1) is None


def test_what_fits_is_bounded_by_max_model_len_and_by_all_groups_together():
    assert manager_of(41, full(), max_model_len=100).max_tokens_that_fit == 100
    assert manager_of(41, full(), full(num_kv_heads=2), max_model_len=2048).max_tokens_that_fit == 320
    # 40 blocks less ceil((31 + 16) / 16) + 1 = 4 of the window.
    both = manager_of(41, full(), window(32), max_model_len=2048, max_num_batched_tokens=16)
    assert both.max_tokens_that_fit == 36 * 16


def test_forgotten_blocks_of_a_failed_step_are_never_hit():
    manager = manager_of(20, full())
    request = request_of(range(64), "a")
    admit(manager, request, 32)
    compute(manager, request, 32)
    manager.forget(request, 32)
    manager.free(request)
    assert manager.get_computed_blocks(request_of(range(64), "b"))[1] == 32
    assert free_ids(manager)[:2] == [3, 4]  # they can serve no hit, so they go first


def test_a_twin_of_a_forgotten_block_is_still_hit():
    manager = manager_of(20, full())
    first, second = request_of(range(32), "a"), request_of(range(32), "b")
    admit(manager, first)
    admit(manager, second)
    manager.forget(first, 16)
    assert manager.get_computed_blocks(request_of(range(33), "c"))[1] == 32


def test_a_request_that_goes_on_after_forgetting_caches_its_blocks_again():
    manager = manager_of(20, full())
    request = request_of(range(33), "a")
    admit(manager, request)
    manager.forget(request, 0)
    assert manager.get_computed_blocks(request_of(range(33), "b"))[1] == 0
    request.num_computed_tokens = 0
    compute(manager, request, 33)
    assert manager.get_computed_blocks(request_of(range(33), "b"))[1] == 32


def test_forgetting_or_freeing_an_unknown_request_does_nothing():
    manager = manager_of(20, full())
    stranger = request_of(range(33), "stranger")
    manager.forget(stranger, 0)
    manager.free(stranger)
    assert manager.num_free_blocks == 19


def test_a_preempted_request_finds_its_own_blocks_again():
    manager = manager_of(20, full())
    request = request_of(range(40), "a")
    admit(manager, request)
    decode(manager, request, range(40, 52))
    manager.free(request)
    request.num_computed_tokens, request.num_preemptions = 0, 1
    assert admit(manager, request) == 48
    assert manager.block_ids("a")[0][:3] == [1, 2, 3]


def test_the_prefix_cache_is_reset_only_when_no_request_holds_a_block():
    manager = manager_of(20, full())
    request = request_of(range(40), "a")
    admit(manager, request)
    assert not manager.reset_prefix_cache()
    assert manager.get_computed_blocks(request_of(range(40), "b"))[1] == 32
    manager.free(request)
    assert manager.reset_prefix_cache()
    assert manager.get_computed_blocks(request_of(range(40), "b"))[1] == 0


def test_lookups_are_counted_once_per_admission_in_tokens():
    manager = manager_of(20, full())
    for request_id in "ab":
        request = request_of(range(64), request_id)
        manager.get_computed_blocks(request)
        admit(manager, request)
        manager.free(request)
    assert (manager.stats.requests, manager.stats.queries, manager.stats.hits) == (2, 128, 48)


def test_refused_and_resumed_requests_are_not_counted():
    manager = manager_of(4, full())
    request = request_of(range(64), "a")
    assert manager.allocate_slots(request, 64) is None
    assert manager.stats.requests == 0
    small = request_of(range(32), "b")
    admit(manager, small)
    manager.free(small)
    small.num_computed_tokens, small.first_scheduled_time = 0, 1.0  # as the scheduler notes it
    assert admit(manager, small) == 16
    assert (manager.stats.queries, manager.stats.hits) == (32, 0)


def test_a_model_without_kv_cache_is_always_admitted():
    manager = manager_of(1)
    request = request_of(range(5000), "a")
    assert admit(manager, request) == 0
    decode(manager, request, range(3))
    assert manager.block_ids("a") == ()
    assert manager.can_ever_fit(8192)
    assert manager.max_tokens_that_fit == 8192
    manager.free(request)
    assert manager.usage == 0.0


@pytest.mark.parametrize("block_size", [1, 16, 64])
def test_all_blocks_come_back_whatever_the_block_size(block_size):
    manager = manager_of(200, full(block_size), window(10, block_size))
    requests = [request_of(range(n), str(n), hash_block_size=block_size) for n in (1, 15, 16, 17, 33)]
    for request in requests:
        admit(manager, request)
    for request in requests:
        decode(manager, request, range(50, 70))
    assert manager.usage > 0
    for request in requests:
        manager.free(request)
    assert (manager.usage, manager.num_free_blocks) == (0.0, 199)
