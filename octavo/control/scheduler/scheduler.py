"""Decides, step by step, which requests run and how many of their tokens are computed.

There is no prefill and no decode: a request has tokens (prompt, output, drafts) of which some are computed, and each
step hands out tokens so that the second number catches up with the first. That one rule covers chunked prefill,
prefix hits, drafts and the return of preempted requests.

A step is decided in order: running requests first, then, unless somebody had to be preempted, waiting ones. When the
cache is full the last running request is preempted: its blocks are freed and it starts again later ("recompute"),
at the front of the queue. Running requests are kept in the order of their claim (FCFS: of admission; priority: of
priority and arrival), so a victim always comes after the request it makes room for, and has been given nothing in
this step that it would have to return. Under priority a waiting request that outranks running ones goes before them,
and takes the place of the last where there is none.

Several steps may be in flight (``max_steps_in_flight``): a step is then decided before the tokens of the one before
are known, and placeholders stand for them. Blocks of a request in a step in flight are never given to another: an
ended request's are freed when the step returns, and a victim is not scheduled until it can be preempted.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterable, Mapping, Sequence

from octavo.control.kv.manager import KVBlocks, KVCacheManager
from octavo.control.request import NEVER, Request, RequestStatus
from octavo.control.scheduler.beams import NO_CANDIDATES, Beam, BeamGate, BeamGroup, only_idle_beams
from octavo.control.scheduler.drafts import DraftCounts, draft_limit
from octavo.control.scheduler.gates import Gate, is_held
from octavo.control.scheduler.lengths import LengthRules
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.queues import QUEUES, RequestQueue, claim
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_time import StepTimeLimit, StepTimeModel
from octavo.control.scheduler.stopping import check_stop, tokenless_end
from octavo.control.scheduler.token_limits import token_limits
from octavo.words.errors import RequestError
from octavo.words.messages import (
    CachedRequestData,
    EngineCoreOutput,
    LogprobsRow,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
    SchedulerStats,
)

RUNNING = RequestStatus.RUNNING
PREEMPTED = RequestStatus.PREEMPTED


class Scheduler:
    """Owns all unfinished requests. Not thread-safe: one caller.

    Every ``schedule()`` is answered by one ``update_from_output()``, in the same order, also when the step has no
    tokens; at most ``max_steps_in_flight`` may be unanswered.
    """

    def __init__(self, limits: SchedulerLimits, kv_cache: KVCacheManager, gates: Sequence[Gate] = ()) -> None:
        self.limits = limits
        self.kv_cache = kv_cache
        self.gates: tuple[Gate, ...] = (BeamGate(), *gates)
        self.step_times = StepTimeModel()
        step_time = StepTimeLimit(self.step_times, limits.max_step_seconds, self._num_decodes)
        self.token_limits = token_limits(
            enable_chunked_prefill=limits.enable_chunked_prefill,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            step_time=step_time if limits.max_step_seconds else None,
        )
        self._loads: dict[int, StepLoad] = {}
        self.requests: dict[str, Request] = {}
        self.waiting: RequestQueue = QUEUES[limits.policy]()
        self.running: list[Request] = []
        self._lengths = LengthRules(limits, kv_cache)
        self.max_request_len = self._lengths.max_request_len

        self._ranks_by_priority = limits.policy == "priority"
        self._watermark_blocks = int(limits.watermark * kv_cache.num_free_blocks)
        self._last_step_id = 0
        self._last_returned_step_id = 0
        self._finished_ids: list[str] = []
        self._awaiting_return: list[Request] = []
        self._ended_early: list[Request] = []
        self._num_preemptions = 0
        self._num_beam_forks = 0
        self._block_copies: list[tuple[int, int]] = []
        self._num_prompt_tokens = 0
        self._num_generation_tokens = 0
        self._drafts = DraftCounts()
        self._limit_drafts = draft_limit(limits, self._drafts, self.step_times, lambda: len(self.running))

    # ---- requests come and go -------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take a request. One that can never run ends with FINISHED_ERROR, reported by the next update.

        A request that brings output tokens (a replay) is treated as a preempted one. Raises RequestError for an id
        that is in use.
        """
        request_id = request.request_id
        if request_id in self.requests or any(gone.request_id == request_id for gone in self._awaiting_return):
            raise RequestError(f"request id {request_id!r} is in use: give each request its own.", param="request_id")
        self.requests[request_id] = request
        max_tokens = request.sampling.max_tokens
        # Where numbers are wanted the whole text is computed: no token follows that need not be.
        longest = self.max_request_len if request.sampling.pooling is None else NEVER
        request.max_total_tokens = min(request.num_prompt_tokens + max_tokens, longest)
        replay_ended = check_stop(request) if request.num_output_tokens else None
        why_never = self._lengths.why_it_can_never_run(request)
        if replay_ended is not None:
            self._end_early(request, replay_ended)
        elif why_never is not None:
            self._end_with_error(request, why_never)
        else:
            if request.num_output_tokens:
                request.status = PREEMPTED
            if request.sampling.params.beam_search is not None:
                request.beam = BeamGroup(request, request.sampling.params.beam_search).beams[0]
            self.waiting.add(request)

    def abort_requests(self, request_ids: Iterable[str]) -> list[Request]:
        """End requests at any moment and free what they hold; unknown and finished ids are ignored.

        Returns the requests it ended. They get no further output, whatever is in flight for them.
        """
        known = [self.requests[request_id] for request_id in dict.fromkeys(request_ids) if request_id in self.requests]
        for request in known:
            if not request.is_finished:  # with another beam of its group
                self._finish(request, RequestStatus.FINISHED_ABORTED)
        if known:
            self.waiting.discard_finished()
            self._drop_finished_from_running()
        return known

    def fail_request(self, request_id: str, error: str) -> None:
        """End a request that waits with an error, which the next update reports; unknown ids are ignored."""
        request = self.requests.get(request_id)
        if request is not None:
            self._end_with_error(request, error)
            self.waiting.discard_finished()
            self._drop_finished_from_running()

    def has_unfinished_requests(self) -> bool:
        """Whether any request still wants tokens."""
        return bool(self.requests)

    def has_requests(self) -> bool:
        """Whether a step has anything to do: requests to serve, errors to report, workers to tell of an end."""
        return bool(self.requests or self._ended_early or self._finished_ids or self._awaiting_return)

    def stats(self) -> SchedulerStats:
        """The books of this moment; counters are totals since start."""
        prefix_cache = self.kv_cache.stats
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.kv_cache.usage,
            num_preemptions=self._num_preemptions,
            prefix_cache_queries=prefix_cache.queries,
            prefix_cache_hits=prefix_cache.hits,
            num_steps=self._last_step_id,
            num_prompt_tokens=self._num_prompt_tokens,
            num_generation_tokens=self._num_generation_tokens,
            num_beam_forks=self._num_beam_forks,
            **self._drafts.totals(),
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while any request holds blocks."""
        return self.kv_cache.reset_prefix_cache()

    # ---- a step is decided ----------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. ``num_computed_tokens`` in it are those before the step."""
        step = self._begin_step()
        if self._ranks_by_priority:
            self._schedule_waiting(step, outranking=True)
        self._schedule_running(step)
        if not step.preempted:
            self._schedule_waiting(step)
        if self.waiting and not (step.granted or self._awaiting_return) and only_idle_beams(self.running):
            self._preempt_last(step)  # The beams that they wait for need the room.
        return self._end_step(step)

    def plan_tokens(self, request: Request, num_computed_tokens: int, step: StepBuilder) -> int:
        """Tokens for the request in this step, after the given computed ones: all that it lacks, within limits."""
        num_tokens = request.num_tokens + request.num_output_placeholders - num_computed_tokens
        if request.draft_token_ids:
            num_tokens += len(request.draft_token_ids)
        if num_tokens == 1 and num_computed_tokens + 1 < request.max_total_tokens:
            return 1  # A decode, as most are: the limits cut only what is more, or longer than the request may be.
        for limit in self.token_limits:
            num_tokens = limit(num_tokens, request, num_computed_tokens, step)
        return num_tokens

    def _begin_step(self) -> StepBuilder:
        num_in_flight = self._last_step_id - self._last_returned_step_id
        assert num_in_flight < self.limits.max_steps_in_flight, f"{num_in_flight} steps are in flight: update first"
        self._last_step_id += 1
        return StepBuilder(
            self._last_step_id, token_budget=self.limits.max_num_batched_tokens, num_eligible=self._num_eligible()
        )

    def _end_step(self, step: StepBuilder) -> SchedulerOutput:
        for request in step.admitted:
            self._join_running(request)
        finished_ids, self._finished_ids = self._finished_ids, []
        step.block_copies, self._block_copies = self._block_copies, []
        self._loads[step.step_id] = step.load
        return step.build(finished_ids, self._limit_drafts(step))

    def _schedule_running(self, step: StepBuilder) -> None:
        kv_cache, num_lookahead, running = self.kv_cache, self.limits.num_lookahead_tokens, self.running
        index = 0
        while index < len(running) - step.num_held_back and step.token_budget > 0:
            request = running[index]
            index += 1
            num_tokens = self.plan_tokens(request, request.num_computed_tokens, step)
            if num_tokens <= 0:
                continue  # All that it has is computed or in flight.
            if kv_cache.has_slots(request, num_tokens + num_lookahead) and not request.is_rewritten:
                step.add_running(request, num_tokens, kv_cache.no_block_ids)
                continue
            while (blocks := kv_cache.allocate_slots(request, num_tokens, num_lookahead_tokens=num_lookahead)) is None:
                if not self._take_room_from_behind(request, step):
                    return
            if request.is_rewritten:
                step.add_rewritten(request, num_tokens, kv_cache.block_ids(request.request_id))
            else:
                step.add_running(request, num_tokens, kv_cache.new_block_ids(blocks))

    def _take_room_from_behind(self, request: Request, step: StepBuilder) -> bool:
        """Preempt the last running request for this one; False: this one and those behind it cannot run now."""
        if self._must_await_return(self.running[-1]):
            return False
        if self._is_alone(request, step):
            self._end_with_error(request, self._lengths.outgrown(request))
            self._drop_finished_from_running()
            return False
        return self._preempt_last(step) is not request

    def _schedule_waiting(self, step: StepBuilder, *, outranking: bool = False) -> None:
        """Admit waiting requests in order; ``outranking``: only those that outrank the last running request."""
        held = []
        while self.waiting and step.token_budget > 0:
            request = self.waiting.peek()
            if outranking and not self._outranks_last_running(request):
                break
            if is_held(request, self.gates):
                held.append(self.waiting.pop())
                continue
            if not self._admit(request, step, outranking):
                break
            self.waiting.pop()
        self.waiting.restore(held)

    def _admit(self, request: Request, step: StepBuilder, outranking: bool) -> bool:
        """Let a waiting request start; False: not in this step, and neither those behind it."""
        if not outranking and not self._has_seat(step):
            return False
        hit, num_hit_tokens = self.kv_cache.get_computed_blocks(request)
        num_tokens = self.plan_tokens(request, num_hit_tokens, step)
        if num_tokens <= 0:
            return False
        while not (self._has_seat(step) and self._slots_for_waiting(request, num_tokens, hit, num_hit_tokens, step)):
            if outranking and self._outranks_last_running(request) and self._make_room(step):
                continue
            if not self._is_alone(request, step):
                return False
            self._end_with_error(request, self._lengths.outgrown(request))
            return True
        self._start(request, num_hit_tokens)
        step.add_admitted(request, num_tokens, self.kv_cache.block_ids(request.request_id))
        return True

    def _slots_for_waiting(
        self, request: Request, num_tokens: int, hit: KVBlocks, num_hit_tokens: int, step: StepBuilder
    ) -> bool:
        joins_others = bool(self.running or step.admitted)
        blocks = self.kv_cache.allocate_slots(
            request,
            num_tokens,
            hit=hit,
            num_hit_tokens=num_hit_tokens,
            num_lookahead_tokens=self.limits.num_lookahead_tokens,
            reserved_blocks=self._watermark_blocks if joins_others else 0,
            whole_input=True,
        )
        return blocks is not None

    def _start(self, request: Request, num_hit_tokens: int) -> None:
        request.status = RUNNING
        request.num_computed_tokens = num_hit_tokens
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.time()
            request.num_cached_tokens = min(num_hit_tokens, request.num_prompt_tokens)
            self._num_prompt_tokens += request.num_prompt_tokens

    def _join_running(self, request: Request) -> None:
        if self._ranks_by_priority:
            bisect.insort(self.running, request, key=claim)
        else:
            self.running.append(request)

    # ---- room is made ---------------------------------------------------------------------------------------------

    def _preempt_last(self, step: StepBuilder) -> Request:
        """Send the last running request back to the queue, to be computed again; return it."""
        if self.running[-1].is_with_workers:
            step.dropped_ids.append(self.running[-1].request_id)
        request = self._send_last_back()
        request.num_preemptions += 1
        step.preempted.append(request)
        self._num_preemptions += 1
        return request

    def _send_last_back(self) -> Request:
        request = self.running.pop()
        self.kv_cache.free(request)
        request.status = PREEMPTED
        request.is_with_workers = False
        request.num_computed_tokens = 0
        request.num_output_placeholders = 0
        request.draft_token_ids = []
        request.prompt_logprobs = []
        self.waiting.add_preempted(request)
        return request

    def _make_room(self, step: StepBuilder) -> bool:
        """Preempt the last running request for one that outranks it; False: not before steps in flight return."""
        if self._must_await_return(self.running[-1]):
            step.num_held_back = 1
            return False
        self._preempt_last(step)
        return True

    def _must_await_return(self, victim: Request) -> bool:
        """Whether to wait for steps in flight: they hold the victim, or blocks that will be free without a victim."""
        return bool(self._awaiting_return) or self._is_in_flight(victim)

    def _is_in_flight(self, request: Request) -> bool:
        return request.last_step_id > self._last_returned_step_id

    def _is_alone(self, request: Request, step: StepBuilder) -> bool:
        """Whether no other request holds blocks: what cannot be had now can never be had."""
        others = len(self.running) - (request.status is RUNNING) + len(step.admitted) + len(self._awaiting_return)
        return others == 0

    def _has_seat(self, step: StepBuilder) -> bool:
        return len(self.running) + len(step.admitted) < self.limits.max_num_seqs

    def _outranks_last_running(self, request: Request) -> bool:
        return bool(self.running) and request.priority < self.running[-1].priority

    def _num_decodes(self) -> int:
        return sum(
            request.num_tokens + request.num_output_placeholders - request.num_computed_tokens <= 1
            for request in self.running
        )

    def _num_eligible(self) -> int:
        num_waiting = len(self.waiting)
        if self.gates and self.limits.long_prefill_token_threshold:
            num_waiting = sum(not is_held(request, self.gates) for request in self.waiting)
        return len(self.running) + num_waiting

    # ---- a step returns -------------------------------------------------------------------------------------------

    def update_from_output(
        self, step: SchedulerOutput, result: ModelRunnerOutput, *, seconds: float | None = None
    ) -> dict[int, list[EngineCoreOutput]]:
        """Book the tokens of a step that returned; return what to tell each client (by its index).

        ``seconds`` is how long the step took, if it was measured: later steps are sized by it.
        Requests that ended while the step ran are passed over. A request in ``result.failed`` ends with
        FINISHED_ERROR, alone.
        """
        self._note_return(step, result, seconds)
        for request_id, reason in result.failed.items():
            self._fail(request_id, reason)
        outputs = self._report_ended_early()

        requests, drafts, num_before = self.requests, step.draft_token_ids, len(self.requests)
        self._take_pooled(result.pooled, outputs)
        logprobs = result.logprobs or [None] * len(result.request_ids)
        for request_id, token_ids, rows in zip(result.request_ids, result.sampled_token_ids, logprobs, strict=True):
            request = requests.get(request_id)
            if request is None:
                continue
            if result.prompt_logprobs:
                self._take_prompt_logprobs(request, result)
            if not token_ids:
                continue  # Its prompt is not through yet.
            if request.beam is not None:
                self._take_candidates(request.beam, rows, outputs)
                continue
            output = self._take_tokens(request, token_ids, len(drafts.get(request_id, ())) if drafts else 0, rows)
            if request.client_index not in outputs:
                outputs[request.client_index] = []
            outputs[request.client_index].append(output)
            if result.draft_token_ids:
                self._take_drafts(request, result)
        if len(requests) < num_before or result.failed:
            self._drop_finished_from_running()
        return outputs

    def start_over(self, lost_steps: Sequence[SchedulerOutput]) -> None:
        """Send all running requests back to the queue: the workers have forgotten them.

        ``lost_steps`` are all steps in flight, oldest first; none of them returns. Hashes of blocks that they were to
        fill are dropped.
        """
        holders = {request.request_id: request for request in (*self.running, *self._awaiting_return)}
        for step in lost_steps:
            known: list[NewRequestData | CachedRequestData] = [*step.new_requests, *step.cached_requests]
            for data in known:
                if data.request_id in holders:
                    self.kv_cache.forget(holders[data.request_id], from_token=data.num_computed_tokens)
        for request in self._awaiting_return:
            self.kv_cache.free(request)
        while self.running:
            self._send_last_back()
        self._awaiting_return = []
        self._finished_ids = []
        self._block_copies = []
        self._loads.clear()
        self._last_returned_step_id = self._last_step_id

    def _note_return(self, step: SchedulerOutput, result: ModelRunnerOutput, seconds: float | None) -> None:
        assert step.step_id == result.step_id == self._last_returned_step_id + 1, "steps return in order"
        self._last_returned_step_id = step.step_id
        load = self._loads.pop(step.step_id)
        if seconds is not None:
            self.step_times.observe(load, seconds - result.draft_seconds)
            self._limit_drafts.observe(load, result.draft_seconds)
        if not self._awaiting_return:
            return
        still_out = []
        for request in self._awaiting_return:
            if self._is_in_flight(request):
                still_out.append(request)
            else:
                self.kv_cache.free(request)
        self._awaiting_return = still_out

    def _take_tokens(
        self, request: Request, token_ids: list[int], num_drafts: int, rows: list[LogprobsRow] | None
    ) -> EngineCoreOutput:
        """Append sampled tokens up to the one that ends the request; take back what rejected drafts had counted."""
        request.num_output_placeholders -= 1 + num_drafts
        request.num_computed_tokens -= 1 + num_drafts - len(token_ids)
        num_accepted = len(token_ids) - 1
        if num_drafts:
            self._drafts.observe(request, num_drafts, num_accepted)
        prompt_logprobs = None
        if request.prompt_logprobs:
            prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, []

        num_taken, finish_reason = 0, None
        for token_id in token_ids:
            num_taken += 1
            request.append_output_token(token_id)
            is_complete = request.constraint is not None and request.constraint.take(token_id)
            status = check_stop(request, is_complete)
            if status is not None:
                self._finish(request, status)
                finish_reason = request.finish_reason
                token_ids, rows = token_ids[:num_taken], rows[:num_taken] if rows else rows
                break
        self._num_generation_tokens += num_taken
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=token_ids,
            new_logprobs=rows,
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=request.stop_reason,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            first_scheduled_time=request.first_scheduled_time,
            num_draft_tokens=num_drafts,
            num_accepted_tokens=num_accepted,
        )

    def _take_pooled(self, pooled: Mapping[str, bytes], outputs: dict[int, list[EngineCoreOutput]]) -> None:
        """End the requests that wanted numbers and have them."""
        for request_id, numbers in pooled.items():
            request = self.requests.get(request_id)
            if request is None:
                continue
            self._finish(request, RequestStatus.FINISHED_STOPPED)
            outputs.setdefault(request.client_index, []).append(tokenless_end(request, pooled=numbers))

    def _take_prompt_logprobs(self, request: Request, result: ModelRunnerOutput) -> None:
        """Collect a chunk's rows; they are sent with the first token, so a preempted request's are not needed twice."""
        if not request.num_output_tokens:
            request.prompt_logprobs.extend(result.prompt_logprobs.get(request.request_id, ()))

    def _take_drafts(self, request: Request, result: ModelRunnerOutput) -> None:
        """Drafts continue the newest token: they are of no use when a later step already computes that."""
        if request.num_computed_tokens < request.num_tokens:
            request.draft_token_ids = result.draft_token_ids.get(request.request_id, [])

    # ---- beams ----------------------------------------------------------------------------------------------------

    def _take_candidates(
        self, beam: Beam, rows: list[LogprobsRow] | None, outputs: dict[int, list[EngineCoreOutput]]
    ) -> None:
        """Note what may follow a beam; when all beams of its group are there, the best go on, or the search ends."""
        group, request = beam.group, beam.request
        beam.candidates = rows[0] if rows else NO_CANDIDATES
        self._num_generation_tokens += 1
        if not group.is_ready:
            return
        branches = group.choose()
        if not branches:
            outputs.setdefault(request.client_index, []).extend(group.outputs())
        for each in group.without_branch(branches):
            self.kv_cache.free(each.request)
        for each in group.go_on_with(branches, self._fork):
            self._let_go(each.request, RequestStatus.FINISHED_STOPPED)
        self._drop_finished_from_running()
        self.waiting.discard_finished()

    def _fork(self, parent: Request, request: Request) -> None:
        """Make a request that holds nothing a copy of its parent, blocks included where there is room for it."""
        self._num_beam_forks += 1
        self.requests[request.request_id] = request
        request.take_over(parent)
        if request.status is PREEMPTED:
            return  # It waits, and is computed anew.
        has_seat = request.status is RUNNING or len(self.running) < self.limits.max_num_seqs
        may_run = has_seat and parent.status is RUNNING and not is_held(request, self.gates)
        if may_run and (copies := self.kv_cache.fork(parent, request)) is not None:
            self._block_copies += copies
            request.num_computed_tokens = parent.num_computed_tokens
            if request.status is not RUNNING:
                request.status = RUNNING
                self._join_running(request)
            return
        if request.status is RUNNING:
            self.running.remove(request)
        if request.is_with_workers:
            self._finished_ids.append(request.request_id)
        request.status, request.is_with_workers = PREEMPTED, False
        self.waiting.add_preempted(request)

    # ---- a request ends -------------------------------------------------------------------------------------------

    def _finish(self, request: Request, status: RequestStatus) -> None:
        """End a request; its blocks are free now or when the last step that holds it returns.

        All beams of its group end with it. The caller takes it out of the list or queue that it is in.
        """
        for each in [request] if request.beam is None else [beam.request for beam in request.beam.group.beams]:
            self._let_go(each, status)

    def _let_go(self, request: Request, status: RequestStatus) -> None:
        holds_blocks = request.status is RUNNING
        request.status = status
        del self.requests[request.request_id]
        if not holds_blocks:
            return
        if request.is_with_workers:
            self._finished_ids.append(request.request_id)
        if self._is_in_flight(request):
            self._awaiting_return.append(request)
        else:
            self.kv_cache.free(request)

    def _fail(self, request_id: str, reason: str) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        # What went wrong may have entered with any block it attended to, so none of them is offered again.
        self.kv_cache.forget(request, from_token=0)
        self._end_with_error(request, reason)

    def _end_with_error(self, request: Request, error: str) -> None:
        request.error = error
        self._end_early(request, RequestStatus.FINISHED_ERROR)

    def _end_early(self, request: Request, status: RequestStatus) -> None:
        """End a request without a new token; the next update reports it."""
        self._finish(request, status)
        self._ended_early.append(request)

    def _report_ended_early(self) -> dict[int, list[EngineCoreOutput]]:
        outputs: dict[int, list[EngineCoreOutput]] = {}
        for request in self._ended_early:
            ends = [tokenless_end(request, choice_id) for choice_id in request.choice_ids]
            outputs.setdefault(request.client_index, []).extend(ends)
        self._ended_early.clear()
        return outputs

    def _drop_finished_from_running(self) -> None:
        self.running = [request for request in self.running if request.status is RUNNING]
