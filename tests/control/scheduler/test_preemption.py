"""Who gives way when the cache is full, and how it comes back.

Blocks hold 16 tokens; the model counts up and never stops by itself.
"""

from __future__ import annotations

from octavo.control.request import RequestStatus
from tests.fakes import ControlPlane, ids, scheduled


def test_a_full_cache_preempts_the_last_request_which_comes_back_in_full():
    plane = ControlPlane(num_blocks=5)  # 4 usable
    plane.add("a", 32, max_tokens=2)
    b = plane.add("b", 32, max_tokens=4)
    assert scheduled(plane.step()) == {"a": 32, "b": 32}

    step = plane.step()  # a needs a third block.
    assert step.preempted_request_ids == ["b"]
    assert scheduled(step) == {"a": 1}
    assert (b.num_computed_tokens, b.num_preemptions, b.status) == (0, 1, RequestStatus.PREEMPTED)
    assert plane.scheduler.stats().num_preemptions == 1

    step = plane.step()  # a has ended. The tail of b went to a, its first block is still cached: 33 - 16 tokens.
    assert step.finished_request_ids == ["a"]
    (back,) = step.new_requests
    assert (back.request_id, back.output_token_ids, back.num_computed_tokens) == ("b", [132], 16)
    assert scheduled(step) == {"b": 17}
    plane.run()
    assert plane.token_ids("b") == [132, 133, 134, 135]
    assert plane.last_output("b").num_preemptions == 1


def test_nobody_is_admitted_in_a_step_that_preempted():
    plane = ControlPlane(num_blocks=6)  # 5 usable
    plane.add("a", 32)
    plane.add("b", 48)
    plane.step()
    plane.add("c", 4)  # Would fit into what b leaves.
    step = plane.step()
    assert step.preempted_request_ids == ["b"]
    assert scheduled(step) == {"a": 1}
    assert ids(plane.scheduler.waiting) == ["b", "c"]


def test_several_victims_of_one_step_keep_their_order_at_the_front_of_the_queue():
    plane = ControlPlane(num_blocks=7, long_prefill_token_threshold=48, max_num_seqs=3)  # 6 usable
    plane.add("a", 95)
    for request_id in "bcd":
        plane.add(request_id, 8)
    assert scheduled(plane.step()) == {"a": 48, "b": 8, "c": 8}
    step = plane.step()  # a needs 3 more blocks and 1 is free.
    assert step.preempted_request_ids == ["c", "b"]
    assert scheduled(step) == {"a": 47}
    assert ids(plane.scheduler.waiting) == ["b", "c", "d"]
    assert list(scheduled(plane.step())) == ["b", "c", "d"]


def test_a_request_that_is_the_last_itself_gives_way():
    plane = ControlPlane(num_blocks=5)  # 4 usable
    plane.add("a", 40, max_tokens=3)
    plane.add("b", 16)
    plane.step()
    step = plane.step()  # b needs a second block; a has room in its third.
    assert step.preempted_request_ids == ["b"]
    assert scheduled(step) == {"a": 1}


def test_a_prompt_is_admitted_only_if_all_of_it_fits_now():
    plane = ControlPlane(num_blocks=9, max_num_batched_tokens=32)  # 8 usable
    plane.add("a", 16)
    plane.step()
    plane.add("b", 113)  # 8 blocks, of which the first chunk needs 2.
    assert scheduled(plane.step()) == {"a": 1}
    plane.scheduler.abort_requests("a")
    assert scheduled(plane.step()) == {"b": 32}


def test_a_refused_request_blocks_those_behind_it():
    plane = ControlPlane(num_blocks=9)
    plane.add("a", 40)
    plane.step()
    plane.add("b", 96)
    plane.add("c", 4)
    assert scheduled(plane.step()) == {"a": 1}
    assert ids(plane.scheduler.waiting) == ["b", "c"]


def test_the_watermark_keeps_blocks_free_when_a_request_joins_others_but_not_when_alone():
    plane = ControlPlane(num_blocks=9, watermark=0.25)  # 8 usable, 2 stay free
    plane.add("a", 16 * 7)
    assert scheduled(plane.step()) == {"a": 64}, "alone it may have all"
    plane.scheduler.abort_requests("a")
    plane.add("b", 16 * 4)
    plane.step()
    plane.add("c", 33)  # 3 blocks; b holds 4 and takes its fifth in this step: 3 are free.
    assert scheduled(plane.step()) == {"b": 1}
    plane.scheduler.abort_requests("c")
    plane.add("d", 16)
    assert scheduled(plane.step()) == {"b": 1, "d": 16}
