"""Where each request stands: it waits, it runs, or it has ended while a step in flight still holds it.

All moves between the three are made here, together with the blocks that a request holds. Running requests are kept in
the order of their claim (FCFS: of admission; priority: of priority and arrival), so the last one is the victim when
room is wanted, and it starts again later ("recompute") at the front of the queue.

Blocks of a request in a step in flight are never given to another: an ended request's are freed when the step
returns, and a victim is not scheduled until it can be preempted.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.queues import QUEUES, RequestQueue, claim
from octavo.control.scheduler.step_builder import StepBuilder
from octavo.control.scheduler.stopping import tokenless_end
from octavo.words.messages import CachedRequestData, EngineCoreOutput, NewRequestData, SchedulerOutput

RUNNING = RequestStatus.RUNNING
PREEMPTED = RequestStatus.PREEMPTED


class Roster:
    """All unfinished requests, each in ``waiting`` or ``running``, and what is left to do for those that ended.

    ``awaiting_return`` have ended in a step in flight: their blocks are freed when it returns. ``finished_ids`` are
    what workers have yet to forget, ``ended_early`` those whose end, without a token, has yet to be reported.
    """

    def __init__(self, kv_cache: KVCacheManager, policy: str) -> None:
        self.ranks_by_priority = policy == "priority"
        self.requests: dict[str, Request] = {}
        self.waiting: RequestQueue = QUEUES[policy]()
        self.running: list[Request] = []
        self.awaiting_return: list[Request] = []
        self.ended_early: list[Request] = []
        self.finished_ids: list[str] = []
        self.last_step_id = 0
        self.last_returned_step_id = 0
        self.num_preemptions = 0
        self._kv_cache = kv_cache

    @property
    def has_loose_ends(self) -> bool:
        """Whether a step must follow though nobody wants tokens: there are errors to report, or ends to tell."""
        return bool(self.ended_early or self.finished_ids or self.awaiting_return)

    def is_in_use(self, request_id: str) -> bool:
        """Whether a request of this name is unfinished, or has ended in a step in flight."""
        return request_id in self.requests or any(gone.request_id == request_id for gone in self.awaiting_return)

    def is_in_flight(self, request: Request) -> bool:
        """Whether a step that has not returned holds the request."""
        return request.last_step_id > self.last_returned_step_id

    def is_alone(self, request: Request, step: StepBuilder) -> bool:
        """Whether no other request holds blocks: what cannot be had now can never be had."""
        others = len(self.running) - (request.status is RUNNING) + len(step.admitted) + len(self.awaiting_return)
        return others == 0

    def outranks_last_running(self, request: Request) -> bool:
        """Whether the request has a better priority than the running one that would be preempted."""
        return bool(self.running) and request.priority < self.running[-1].priority

    def must_await_return(self, victim: Request) -> bool:
        """Whether to wait for steps in flight: they hold the victim, or blocks that will be free without a victim."""
        return bool(self.awaiting_return) or self.is_in_flight(victim)

    def num_decodes(self) -> int:
        """Running requests that lack no more than their newest token."""
        return sum(
            request.num_tokens + request.num_output_placeholders - request.num_computed_tokens <= 1
            for request in self.running
        )

    # ---- a request runs, and makes room ---------------------------------------------------------------------------

    def join_running(self, request: Request) -> None:
        """Put a request that was started among the running ones, in the order of its claim."""
        if self.ranks_by_priority:
            bisect.insort(self.running, request, key=claim)
        else:
            self.running.append(request)

    def preempt_last(self, step: StepBuilder) -> Request:
        """Send the last running request back to the queue, to be computed again; return it."""
        if self.running[-1].is_with_workers:
            step.dropped_ids.append(self.running[-1].request_id)
        request = self._send_last_back()
        request.num_preemptions += 1
        step.preempted.append(request)
        self.num_preemptions += 1
        return request

    def _send_last_back(self) -> Request:
        request = self.running.pop()
        self._kv_cache.free(request)
        request.status = PREEMPTED
        request.is_with_workers = False
        request.num_computed_tokens = 0
        request.num_output_placeholders = 0
        request.draft_token_ids = []
        request.prompt_logprobs = []
        self.waiting.add_preempted(request)
        return request

    def let_wait(self, request: Request) -> None:
        """Send a beam that holds no blocks (any more) to the queue, to be computed again."""
        if request.status is RUNNING:
            self.running.remove(request)
        if request.is_with_workers:
            self.finished_ids.append(request.request_id)
        request.status, request.is_with_workers = PREEMPTED, False
        self.waiting.add_preempted(request)

    # ---- steps come and go ----------------------------------------------------------------------------------------

    def begin_step(self, max_in_flight: int) -> int:
        """The id of the next step."""
        num_in_flight = self.last_step_id - self.last_returned_step_id
        assert num_in_flight < max_in_flight, f"{num_in_flight} steps are in flight: update first"
        self.last_step_id += 1
        return self.last_step_id

    def take_finished_ids(self) -> list[str]:
        """The requests that workers are to forget; begins anew."""
        finished_ids, self.finished_ids = self.finished_ids, []
        return finished_ids

    def step_returns(self, step_id: int) -> None:
        """Free what only that step held."""
        assert step_id == self.last_returned_step_id + 1, "steps return in order"
        self.last_returned_step_id = step_id
        if not self.awaiting_return:
            return
        still_out = []
        for request in self.awaiting_return:
            if self.is_in_flight(request):
                still_out.append(request)
            else:
                self._kv_cache.free(request)
        self.awaiting_return = still_out

    def start_over(self, lost_steps: Sequence[SchedulerOutput]) -> None:
        """Send all running requests back to the queue; none of ``lost_steps``, oldest first, returns.

        Hashes of blocks that they were to fill are dropped.
        """
        holders = {request.request_id: request for request in (*self.running, *self.awaiting_return)}
        for step in lost_steps:
            known: list[NewRequestData | CachedRequestData] = [*step.new_requests, *step.cached_requests]
            for data in known:
                if data.request_id in holders:
                    self._kv_cache.forget(holders[data.request_id], from_token=data.num_computed_tokens)
        for request in self.awaiting_return:
            self._kv_cache.free(request)
        while self.running:
            self._send_last_back()
        self.awaiting_return = []
        self.finished_ids = []
        self.last_returned_step_id = self.last_step_id

    # ---- a request ends -------------------------------------------------------------------------------------------

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request; its blocks are free now or when the last step that holds it returns.

        All beams of its group end with it. The caller takes it out of the list or queue that it is in.
        """
        for each in [request] if request.beam is None else [beam.request for beam in request.beam.group.beams]:
            self.let_go(each, status)

    def let_go(self, request: Request, status: RequestStatus) -> None:
        """End a request alone, whatever becomes of other beams of its group."""
        holds_blocks = request.status is RUNNING
        request.status = status
        del self.requests[request.request_id]
        if not holds_blocks:
            return
        if request.is_with_workers:
            self.finished_ids.append(request.request_id)
        if self.is_in_flight(request):
            self.awaiting_return.append(request)
        else:
            self._kv_cache.free(request)

    def end_with_error(self, request: Request, error: str, *, is_refused: bool = False) -> None:
        """End a request with an error, which the next update reports. ``is_refused``: the request is to blame."""
        request.error, request.is_refused = error, is_refused
        self.end_early(request, RequestStatus.FINISHED_ERROR)

    def end_early(self, request: Request, status: RequestStatus) -> None:
        """End a request without a new token; the next update reports it."""
        self.finish(request, status)
        self.ended_early.append(request)

    def report_ended_early(self) -> dict[int, list[EngineCoreOutput]]:
        """What to tell each client (by its index) of requests that ended without a token; begins anew."""
        outputs: dict[int, list[EngineCoreOutput]] = {}
        for request in self.ended_early:
            ends = [tokenless_end(request, choice_id) for choice_id in request.choice_ids]
            outputs.setdefault(request.client_index, []).extend(ends)
        self.ended_early.clear()
        return outputs

    def drop_finished(self) -> None:
        """Take ended requests out of queue and running list, wherever they stood."""
        self.waiting.discard_finished()
        self.drop_finished_from_running()

    def drop_finished_from_running(self) -> None:
        """The same, where no request ended that waited."""
        self.running = [request for request in self.running if request.status is RUNNING]
