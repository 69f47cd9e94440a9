"""Urgent requests take seats and blocks of others.

Blocks hold 16 tokens; the model counts up and never stops by itself.
"""

from __future__ import annotations

from tests.fakes import ControlPlane, ids, scheduled


def test_an_urgent_request_takes_the_seat_of_the_lowest_at_the_next_step():
    plane = ControlPlane(policy="priority", max_num_seqs=3)  # PC13
    plane.add("low", 4, priority=5, arrival_time=0.0)
    plane.add("lowest", 4, priority=9, arrival_time=1.0)
    plane.add("middle", 4, priority=3, arrival_time=2.0)
    plane.step()
    plane.add("urgent", 4, priority=0, arrival_time=3.0, max_tokens=2)
    step = plane.step()
    assert step.preempted_request_ids == ["lowest"]
    assert scheduled(step) == {"urgent": 4, "middle": 1, "low": 1}
    plane.step()
    assert list(scheduled(plane.step())) == ["middle", "low", "lowest"], "it comes back when the urgent one is gone"


def test_an_urgent_request_takes_the_blocks_of_the_lowest():
    plane = ControlPlane(policy="priority", num_blocks=9)  # 8 usable
    for number, request_id in enumerate("abc"):
        plane.add(request_id, 30, priority=1, arrival_time=float(number))
    plane.step()
    plane.add("urgent", 60, priority=0, arrival_time=9.0)  # 4 blocks; 2 are free.
    step = plane.step()
    assert step.preempted_request_ids == ["c"]
    assert scheduled(step) == {"urgent": 60, "a": 1, "b": 1}


def test_equals_do_not_take_each_others_place():
    plane = ControlPlane(policy="priority", max_num_seqs=1)
    plane.add("late", 4, priority=1, arrival_time=5.0, max_tokens=2)
    plane.step()
    plane.add("early", 4, priority=1, arrival_time=0.0)
    assert scheduled(plane.step()) == {"late": 1}
    assert scheduled(plane.step()) == {"early": 4}


def test_the_victim_is_the_lowest_priority_then_the_latest_and_gets_nothing_of_the_step():
    plane = ControlPlane(policy="priority", num_blocks=7)  # 6 usable
    plane.add("low", 31, priority=2, arrival_time=0.0)
    plane.add("high late", 31, priority=1, arrival_time=2.0)
    plane.step()
    plane.add("high early", 31, priority=1, arrival_time=1.0)
    plane.step()
    assert ids(plane.scheduler.running) == ["high early", "high late", "low"]
    step = plane.step()  # The high ones need a third block each.
    assert step.preempted_request_ids == ["low"]
    assert scheduled(step) == {"high early": 1, "high late": 1}
    assert step.total_num_scheduled_tokens == 2


def test_requests_of_one_priority_start_in_order_of_arrival():
    plane = ControlPlane(policy="priority", max_num_seqs=1)
    plane.add("second", 4, arrival_time=2.0, max_tokens=1)
    plane.add("first", 4, arrival_time=1.0, max_tokens=1)
    plane.add("urgent", 4, priority=-1, arrival_time=3.0, max_tokens=1)
    plane.run()
    assert list(plane.outputs) == ["urgent", "first", "second"]
