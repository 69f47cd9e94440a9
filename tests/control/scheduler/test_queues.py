from __future__ import annotations

import pytest

from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.queues import FCFSQueue, PriorityQueue, RequestQueue
from tests.fakes import make_message


def waiting(request_id: str, *, priority: int = 0, arrival_time: float = 0.0) -> Request:
    return Request(make_message(request_id, priority=priority, arrival_time=arrival_time))


def preempted(request_id: str, *, priority: int = 0, arrival_time: float = 0.0) -> Request:
    request = waiting(request_id, priority=priority, arrival_time=arrival_time)
    request.status = RequestStatus.PREEMPTED
    return request


def drain(queue: RequestQueue) -> str:
    return "".join(queue.pop().request_id for _ in range(len(queue)))


def test_first_come_first_served_whatever_the_priority():
    queue = FCFSQueue()
    for number, request_id in enumerate("abc"):
        queue.add(waiting(request_id, priority=-number))
    assert queue.peek().request_id == "a"
    assert drain(queue) == "abc"


def test_victims_go_to_the_front_and_keep_their_order():
    queue = FCFSQueue()
    queue.add(waiting("w"))
    for request_id in "cba":  # The last running request is preempted first.
        queue.add_preempted(preempted(request_id))
    assert drain(queue) == "abcw"


def test_lower_priority_numbers_come_first_then_arrival_then_id():
    queue = PriorityQueue()
    queue.add(waiting("d", priority=1, arrival_time=0.0))
    queue.add(waiting("c", priority=0, arrival_time=2.0))
    queue.add(waiting("b", priority=0, arrival_time=1.0))
    queue.add(waiting("a", priority=0, arrival_time=1.0))
    queue.add(waiting("e", priority=-5, arrival_time=9.0))
    assert queue.peek().request_id == "e"
    assert drain(queue) == "eabcd"


def test_a_victim_is_ahead_of_its_equals_even_of_earlier_ones_but_not_of_its_betters():
    queue = PriorityQueue()
    queue.add(waiting("early", priority=1, arrival_time=0.0))
    queue.add(waiting("better", priority=0, arrival_time=9.0))
    queue.add_preempted(preempted("victim", priority=1, arrival_time=5.0))
    assert [queue.pop().request_id for _ in range(3)] == ["better", "victim", "early"]


@pytest.mark.parametrize("kind", [FCFSQueue, PriorityQueue])
def test_skipped_requests_return_to_their_places(kind: type[FCFSQueue] | type[PriorityQueue]):
    queue = kind()
    for number, request_id in enumerate("abcd"):
        queue.add(waiting(request_id, arrival_time=float(number)))
    skipped = [queue.pop(), queue.pop()]
    assert queue.pop().request_id == "c"
    queue.restore(skipped)
    assert drain(queue) == "abd"


@pytest.mark.parametrize("kind", [FCFSQueue, PriorityQueue])
def test_finished_requests_are_taken_out_wherever_they_stand(kind: type[FCFSQueue] | type[PriorityQueue]):
    queue = kind()
    requests = [waiting(request_id, arrival_time=float(number)) for number, request_id in enumerate("abcde")]
    for request in requests:
        queue.add(request)
    for request in (requests[0], requests[2], requests[4]):
        request.status = RequestStatus.FINISHED_ABORTED
    queue.discard_finished()
    assert len(queue) == 2
    assert sorted(request.request_id for request in queue) == ["b", "d"]
    assert drain(queue) == "bd"
