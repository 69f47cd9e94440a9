"""Bursts: several decode steps at once, where nothing has to be decided between them.

Requests that only sample their next token need the scheduler for two things: slots, which can be given ahead, and their
end, after which a few tokens too many are dropped. So a burst brings the tokens of single steps, in less time: all that
an engine does between two steps is done once, and the workers need not look up from their kernels.

It is short enough for those who read along, and for who comes meanwhile; it is over when the first of its requests must
end; and nobody is preempted for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import Request
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.step_builder import StepBuilder
from octavo.control.scheduler.step_time import StepTimeModel
from octavo.words.sampling_params import RequestOutputKind

MOST_STEPS = 16
"""Of a burst: there is little left to save after so many, and more to drop behind the end of a request."""


class DecodeBursts:
    """Makes steps longer. ``num_bursts`` returned so far, and the ``num_steps`` in them."""

    def __init__(self, limits: SchedulerLimits, kv_cache: KVCacheManager, step_times: StepTimeModel) -> None:
        self.num_bursts = self.num_steps = 0
        self._kv_cache = kv_cache
        self._step_times = step_times
        self._most_steps = min(MOST_STEPS, limits.max_num_batched_tokens)
        self._read_seconds = limits.max_burst_seconds
        self._unread_seconds = max(limits.max_burst_seconds, limits.max_step_seconds / 2 or math.inf)

    def extend(self, step: StepBuilder, most_steps: int) -> int:
        """Make a decided step a burst of at most so many, if it can be one; how many it is now."""
        requests = step.granted
        if not self._read_seconds or not step.is_of_single_tokens or not all(map(_goes_on_alone, requests)):
            return 1
        num_steps = min(self._steps_in_time(requests), min(map(_steps_left, requests)), most_steps)
        while num_steps > 1 and self._blocks_lacking(requests, num_steps - 1) > self._kv_cache.num_free_blocks:
            num_steps //= 2
        if num_steps > 1:
            step.decode_on(num_steps, [self._more_block_ids(request, num_steps - 1) for request in requests])
        return max(num_steps, 1)

    def count(self, num_steps: int) -> None:
        """A step has come back, which was so many."""
        if num_steps > 1:
            self.num_bursts += 1
            self.num_steps += num_steps

    def _steps_in_time(self, requests: Sequence[Request]) -> int:
        expected = self._step_times.decode_seconds(len(requests))
        if expected <= 0.0:
            return 1
        seconds = self._read_seconds if any(map(_is_read_along, requests)) else self._unread_seconds
        return int(min(seconds / expected, self._most_steps))

    def _blocks_lacking(self, requests: Sequence[Request], num_tokens: int) -> int:
        return sum(self._kv_cache.blocks_to_grow(request, num_tokens) for request in requests)

    def _more_block_ids(self, request: Request, num_tokens: int) -> tuple[list[int], ...]:
        blocks = self._kv_cache.allocate_slots(request, num_tokens)
        assert blocks is not None, "there is room: it was counted"
        return self._kv_cache.new_block_ids(blocks)


def _goes_on_alone(request: Request) -> bool:
    """Whether the step computes a request's newest token, and nobody but the sampler has a say in those that follow."""
    is_sampled = request.num_computed_tokens == request.num_tokens + request.num_output_placeholders - 1
    return is_sampled and request.num_output_tokens > 0 and request.constraint is None and request.beam is None


def _steps_left(request: Request) -> int:
    """Steps until the request must end, the one that is decided included."""
    return request.max_total_tokens - request.num_computed_tokens


def _is_read_along(request: Request) -> bool:
    return request.sampling.params.output_kind is not RequestOutputKind.FINAL_ONLY
