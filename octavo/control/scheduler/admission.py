"""Waiting requests start, in their order, as far as seats, tokens and blocks allow.

The first that finds no room ends the round: those behind it must not overtake it. One that a gate holds is only
skipped. Under priority a waiting request that outranks running ones goes before them, and takes the place of the last
where there is none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.control.kv.manager import KVBlocks, KVCacheManager
from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.gates import Gates
from octavo.control.scheduler.lengths import LengthRules
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.roster import Roster
from octavo.control.scheduler.step_builder import StepBuilder


class Admission:
    """Lets waiting requests of the roster start. ``num_prompt_tokens`` counts those of all that ever started.

    ``plan_tokens(request, num_computed_tokens, step)`` says how many tokens a request gets.
    """

    def __init__(
        self,
        roster: Roster,
        kv_cache: KVCacheManager,
        gates: Gates,
        limits: SchedulerLimits,
        lengths: LengthRules,
        plan_tokens: Callable[[Request, int, StepBuilder], int],
    ) -> None:
        self.num_prompt_tokens = 0
        self._roster = roster
        self._kv_cache = kv_cache
        self._gates = gates
        self._limits = limits
        self._lengths = lengths
        self._plan_tokens = plan_tokens
        self._watermark_blocks = int(limits.watermark * kv_cache.num_free_blocks)

    def schedule_waiting(self, step: StepBuilder, *, outranking: bool = False) -> None:
        """Admit waiting requests in order; ``outranking``: only those that outrank the last running request."""
        waiting, held = self._roster.waiting, []
        while waiting and step.token_budget > 0:
            request = waiting.peek()
            if outranking and not self._roster.outranks_last_running(request):
                break
            if self._gates.holds(request):
                held.append(waiting.pop())
                continue
            if not self._admit(request, step, outranking):
                break
            waiting.pop()
        waiting.restore(held)

    def _admit(self, request: Request, step: StepBuilder, outranking: bool) -> bool:
        """Let a waiting request start; False: not in this step, and neither those behind it."""
        if not outranking and not self._has_seat(step):
            return False
        hit, num_hit_tokens = self._kv_cache.get_computed_blocks(request)
        num_tokens = self._plan_tokens(request, num_hit_tokens, step)
        if num_tokens <= 0:
            return False
        while not (self._has_seat(step) and self._find_slots(request, num_tokens, hit, num_hit_tokens, step)):
            if outranking and self._roster.outranks_last_running(request) and self._make_room(step):
                continue
            if not self._roster.is_alone(request, step):
                return False
            self._roster.end_with_error(request, self._lengths.outgrown(request))
            return True
        self._start(request, num_hit_tokens)
        step.add_admitted(request, num_tokens, self._kv_cache.block_ids(request.request_id))
        return True

    def _has_seat(self, step: StepBuilder) -> bool:
        return len(self._roster.running) + len(step.admitted) < self._limits.max_num_seqs

    def _find_slots(
        self, request: Request, num_tokens: int, hit: KVBlocks, num_hit_tokens: int, step: StepBuilder
    ) -> bool:
        joins_others = bool(self._roster.running or step.admitted)
        blocks = self._kv_cache.allocate_slots(
            request,
            num_tokens,
            hit=hit,
            num_hit_tokens=num_hit_tokens,
            num_lookahead_tokens=self._limits.num_lookahead_tokens,
            reserved_blocks=self._watermark_blocks if joins_others else 0,
            whole_input=True,
        )
        return blocks is not None

    def _make_room(self, step: StepBuilder) -> bool:
        """Preempt the last running request for one that outranks it; False: not before steps in flight return."""
        if self._roster.must_await_return(self._roster.running[-1]):
            step.num_held_back = 1
            return False
        self._roster.preempt_last(step)
        return True

    def _start(self, request: Request, num_hit_tokens: int) -> None:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_hit_tokens
        if request.first_scheduled_time is None:
            request.first_scheduled_time = time.time()
            request.num_cached_tokens = min(num_hit_tokens, request.num_prompt_tokens)
            self.num_prompt_tokens += request.num_prompt_tokens
