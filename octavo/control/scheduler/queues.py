"""Requests that wait, in the order in which they will be tried.

Whoever was preempted is tried before those of its rank that never ran: it has answered part of its request already,
and its prefix may still be cached. Under FCFS that is the front of the queue. Under priority it is the front of its
own priority: losing its place is no reason to lose another.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Protocol

from octavo.control.request import Request, RequestStatus


class RequestQueue(Protocol):
    """An ordered queue of waiting requests."""

    def add(self, request: Request) -> None:
        """Queue a request that just arrived."""

    def add_preempted(self, request: Request) -> None:
        """Queue a victim (status PREEMPTED) ahead of its equals."""

    def peek(self) -> Request:
        """The next request; the queue must not be empty."""

    def pop(self) -> Request:
        """Take the next request out."""

    def restore(self, requests: Sequence[Request]) -> None:
        """Put requests that were popped and only skipped back in front, in their order."""

    def discard_finished(self) -> None:
        """Take out every finished request."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """The waiting requests, in no particular order."""


class FCFSQueue:
    """First come, first served."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add(self, request: Request) -> None:
        self._requests.append(request)

    def add_preempted(self, request: Request) -> None:
        self._requests.appendleft(request)

    def peek(self) -> Request:
        return self._requests[0]

    def pop(self) -> Request:
        return self._requests.popleft()

    def restore(self, requests: Sequence[Request]) -> None:
        self._requests.extendleft(reversed(requests))

    def discard_finished(self) -> None:
        self._requests = deque(request for request in self._requests if not request.is_finished)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityQueue:
    """Lower ``priority`` first; among equals the preempted, then by arrival, then by id."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, bool, float, str], Request]] = []

    def add(self, request: Request) -> None:
        never_ran = request.status is not RequestStatus.PREEMPTED
        key = (request.priority, never_ran, request.arrival_time, request.request_id)
        heapq.heappush(self._heap, (key, request))

    def add_preempted(self, request: Request) -> None:
        self.add(request)

    def peek(self) -> Request:
        return self._heap[0][1]

    def pop(self) -> Request:
        return heapq.heappop(self._heap)[1]

    def restore(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self.add(request)

    def discard_finished(self) -> None:
        self._heap = [entry for entry in self._heap if not entry[1].is_finished]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return (request for _, request in self._heap)


QUEUES: dict[str, type[FCFSQueue] | type[PriorityQueue]] = {"fcfs": FCFSQueue, "priority": PriorityQueue}
"""Scheduling policy -> its queue."""


def claim(request: Request) -> tuple[int, float, str]:
    """Under priority, running requests are served in this order and preempted in the reverse one."""
    return request.priority, request.arrival_time, request.request_id
