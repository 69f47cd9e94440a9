"""Decides, step by step, which requests run and how many of their tokens are computed.

There is no prefill and no decode: a request has tokens (prompt, output, drafts) of which some are computed, and each
step hands out tokens so that the second number catches up with the first. That one rule covers chunked prefill,
prefix hits, drafts and the return of preempted requests.

A step is decided in order: running requests first, then, unless somebody had to be preempted, waiting ones
(``admission.py``). When the cache is full the last running request is preempted (``roster.py``). It comes after the
request it makes room for, and so has been given nothing in this step that it would have to return. When the step
returns, what it brought is booked (``step_results.py``).

Several steps may be in flight (``max_steps_in_flight``): a step is then decided before the tokens of the one before
are known, and placeholders stand for them. Where all requests only decode, a step may be a burst of several
(``bursts.py``), as if every token but the first had been a draft.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import NEVER, Request, RequestStatus
from octavo.control.scheduler.adaptive_drafts import draft_limit
from octavo.control.scheduler.admission import Admission
from octavo.control.scheduler.beam_searches import BeamSearches
from octavo.control.scheduler.beams import BeamGate, BeamGroup, only_idle_beams
from octavo.control.scheduler.bursts import DecodeBursts
from octavo.control.scheduler.drafts import DraftCounts
from octavo.control.scheduler.gates import Gate, Gates
from octavo.control.scheduler.lengths import LengthRules
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.queues import RequestQueue
from octavo.control.scheduler.roster import Roster
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_results import StepResults
from octavo.control.scheduler.step_time import StepTimeLimit, StepTimeModel
from octavo.control.scheduler.stopping import check_stop
from octavo.control.scheduler.token_limits import token_limits
from octavo.words.errors import RequestError
from octavo.words.messages import EngineCoreOutput, ModelRunnerOutput, SchedulerOutput, SchedulerStats


class Scheduler:
    """Owns all unfinished requests. Not thread-safe: one caller.

    Every ``schedule()`` is answered by one ``update_from_output()``, in the same order, also when the step has no
    tokens; at most ``max_steps_in_flight`` may be unanswered.
    """

    def __init__(
        self,
        limits: SchedulerLimits,
        kv_cache: KVCacheManager,
        gates: Sequence[Gate] = (),
        *,
        roster: Roster | None = None,
    ) -> None:
        self.limits = limits
        self.kv_cache = kv_cache
        self._lengths = LengthRules(limits, kv_cache)
        self.max_request_len = self._lengths.max_request_len
        self._roster = roster = roster or Roster(kv_cache, limits.policy)
        self._gates = Gates((BeamGate(), *gates))

        self.step_times = StepTimeModel()
        self._loads: dict[int, StepLoad] = {}
        self._num_prefill_chunks = 0
        step_time = StepTimeLimit(self.step_times, limits.max_step_seconds, roster.num_decodes)
        self.token_limits = token_limits(
            enable_chunked_prefill=limits.enable_chunked_prefill,
            long_prefill_token_threshold=limits.long_prefill_token_threshold,
            max_num_batched_tokens=limits.max_num_batched_tokens,
            step_time=step_time if limits.max_step_seconds else None,
        )
        self._drafts = DraftCounts(in_hindsight=limits.drafter_looks_back)
        self._limit_drafts = draft_limit(limits, self._drafts)

        self._admission = Admission(roster, kv_cache, self._gates, limits, self._lengths, self.plan_tokens)
        self._beam_searches = BeamSearches(roster, kv_cache, self._gates, max_num_seqs=limits.max_num_seqs)
        self._bursts = DecodeBursts(limits, kv_cache, self.step_times)
        self._results = StepResults(roster, kv_cache, self._beam_searches, self._drafts)

    @property
    def requests(self) -> dict[str, Request]:
        """The unfinished requests by id."""
        return self._roster.requests

    @property
    def waiting(self) -> RequestQueue:
        return self._roster.waiting

    @property
    def running(self) -> Sequence[Request]:
        """In the order of their claim."""
        return self._roster.running

    def add_gate(self, gate: Gate) -> None:
        """One more reason for requests to wait."""
        self._gates.add(gate)

    # ---- requests come and go -------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        """Take a request. One that can never run ends with FINISHED_ERROR, reported by the next update.

        A request that brings output tokens (a replay) is treated as a preempted one. Raises RequestError for an id
        that is in use.
        """
        request_id = request.request_id
        if self._roster.is_in_use(request_id):
            raise RequestError(f"request id {request_id!r} is in use: give each request its own.", param="request_id")
        self.requests[request_id] = request
        max_tokens = request.sampling.max_tokens
        # Where numbers are wanted the whole text is computed: no token follows that need not be.
        longest = self.max_request_len if request.sampling.pooling is None else NEVER
        request.max_total_tokens = min(request.num_prompt_tokens + max_tokens, longest)
        replay_ended = check_stop(request) if request.num_output_tokens else None
        why_never = self._lengths.why_it_can_never_run(request)
        if replay_ended is not None:
            self._roster.end_early(request, replay_ended)
        elif why_never is not None:
            self._roster.end_with_error(request, why_never)
        else:
            if request.num_output_tokens:
                request.status = RequestStatus.PREEMPTED
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
                self._roster.finish(request, RequestStatus.FINISHED_ABORTED)
        if known:
            self._roster.drop_finished()
        return known

    def fail_request(self, request_id: str, error: str, *, is_refused: bool = False) -> None:
        """End a request that waits with an error, which the next update reports; unknown ids are ignored."""
        request = self.requests.get(request_id)
        if request is not None:
            self._roster.end_with_error(request, error, is_refused=is_refused)
            self._roster.drop_finished()

    def has_unfinished_requests(self) -> bool:
        """Whether any request still wants tokens."""
        return bool(self.requests)

    def has_requests(self) -> bool:
        """Whether a step has anything to do: requests to serve, errors to report, workers to tell of an end."""
        return bool(self._roster.requests) or self._roster.has_loose_ends

    def stats(self) -> SchedulerStats:
        """The books of this moment; counters are totals since start."""
        prefix_cache = self.kv_cache.stats
        return SchedulerStats(
            num_running=len(self.running),
            num_waiting=len(self.waiting),
            kv_cache_usage=self.kv_cache.usage,
            num_preemptions=self._roster.num_preemptions,
            prefix_cache_queries=prefix_cache.queries,
            prefix_cache_hits=prefix_cache.hits,
            num_steps=self._roster.last_step_id + self._bursts.num_steps - self._bursts.num_bursts,
            num_prefill_chunks=self._num_prefill_chunks,
            num_prompt_tokens=self._admission.num_prompt_tokens,
            num_generation_tokens=self._results.num_generation_tokens,
            num_beam_forks=self._beam_searches.num_forks,
            num_bursts=self._bursts.num_bursts,
            num_burst_steps=self._bursts.num_steps,
            **self._drafts.totals(),
        )

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing done, while any request holds blocks."""
        return self.kv_cache.reset_prefix_cache()

    # ---- a step is decided ----------------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide the next step. ``num_computed_tokens`` in it are those before the step."""
        roster, admission = self._roster, self._admission
        step = self._begin_step()
        if roster.ranks_by_priority:
            admission.schedule_waiting(step, outranking=True)
        self._schedule_running(step)
        if not step.preempted:
            admission.schedule_waiting(step)
        if roster.waiting and not (step.granted or roster.awaiting_return) and only_idle_beams(roster.running):
            roster.preempt_last(step)  # The beams that they wait for need the room.
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
        limits = self.limits
        step_id = self._roster.begin_step(limits.max_steps_in_flight)
        return StepBuilder(step_id, token_budget=limits.max_num_batched_tokens, num_eligible=self._num_eligible())

    def _num_eligible(self) -> int:
        num_waiting = len(self.waiting)
        if self.limits.long_prefill_token_threshold:
            num_waiting = sum(not self._gates.holds(request) for request in self.waiting)
        return len(self.running) + num_waiting

    def _end_step(self, step: StepBuilder) -> SchedulerOutput:
        for request in step.admitted:
            self._roster.join_running(request)
        step.block_copies = self._beam_searches.take_block_copies()
        num_drafts = self._limit_drafts(step)
        self._bursts.extend(step, 1 if num_drafts else self._limit_drafts.steps_without(step))
        self._loads[step.step_id] = step.load
        self._num_prefill_chunks += step.num_unfinished
        trials = {} if num_drafts else self._limit_drafts.trials(step)
        return step.build(self._roster.take_finished_ids(), num_drafts, trials)

    def _schedule_running(self, step: StepBuilder) -> None:
        kv_cache, num_lookahead, running = self.kv_cache, self.limits.num_lookahead_tokens, self._roster.running
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
        roster = self._roster
        if roster.must_await_return(roster.running[-1]):
            return False
        if roster.is_alone(request, step):
            roster.end_with_error(request, self._lengths.outgrown(request))
            roster.drop_finished_from_running()
            return False
        return roster.preempt_last(step) is not request

    # ---- a step returns -------------------------------------------------------------------------------------------

    def update_from_output(
        self,
        step: SchedulerOutput,
        result: ModelRunnerOutput,
        *,
        seconds: float | None = None,
        seconds_before: float = 0.0,
    ) -> dict[int, list[EngineCoreOutput]]:
        """Book the tokens of a step that returned; return what to tell each client (by its index).

        ``seconds`` is how long the step took, if it was measured: later steps are sized by it. ``seconds_before``
        passed between the step before it and this one.
        Requests that ended while the step ran are passed over. A request in ``result.failed`` ends with
        FINISHED_ERROR, alone.
        """
        self._note_return(step, result, seconds, seconds_before)
        for request_id, reason in result.failed.items():
            self._fail(request_id, reason, is_refused=request_id in result.refused)
        outputs = self._roster.report_ended_early()
        num_before = len(self.requests)
        self._results.take(step, result, outputs)
        if len(self.requests) < num_before or result.failed:
            self._roster.drop_finished_from_running()
        return outputs

    def start_over(self, lost_steps: Sequence[SchedulerOutput]) -> None:
        """Send all running requests back to the queue: the workers have forgotten them.

        ``lost_steps`` are all steps in flight, oldest first; none of them returns. Hashes of blocks that they were to
        fill are dropped.
        """
        self._roster.start_over(lost_steps)
        self._beam_searches.take_block_copies()
        self._loads.clear()

    def _note_return(
        self, step: SchedulerOutput, result: ModelRunnerOutput, seconds: float | None, seconds_before: float
    ) -> None:
        assert step.step_id == result.step_id, "a step is answered by its own result"
        self._roster.step_returns(step.step_id)
        load = self._loads.pop(step.step_id)
        self._bursts.count(result.num_decode_steps)
        if seconds is not None:
            num_steps, seconds = result.num_decode_steps, seconds - result.draft_seconds
            self.step_times.observe(load, seconds / num_steps)
            self._limit_drafts.observe(load, num_steps, seconds + seconds_before, result.draft_seconds)

    def _fail(self, request_id: str, reason: str, *, is_refused: bool) -> None:
        request = self.requests.get(request_id)
        if request is None:
            return
        # What went wrong may have entered with any block it attended to, so none of them is offered again.
        self.kv_cache.forget(request, from_token=0)
        self._roster.end_with_error(request, reason, is_refused=is_refused)
