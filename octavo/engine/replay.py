"""What goes on when a core is replaced by another: requests, and the totals that were counted."""

from __future__ import annotations

from itertools import zip_longest
from typing import TypeVar

import msgspec

from octavo.words.messages import EngineCoreOutput, EngineCoreRequest, SchedulerStats

Count = TypeVar("Count", int, list[int])

OF_THIS_MOMENT = frozenset({"num_running", "num_waiting", "kv_cache_usage"})
TOTALS = tuple(name for name in SchedulerStats.__struct_fields__ if name not in OF_THIS_MOMENT)
"""What of a scheduler's statistics counts since its start: all but what is so at this moment."""


class ReplayableRequest:
    """A request and what the front end knows of its answer. ``num_deaths``: cores it may have ended since a token."""

    __slots__ = ("first_scheduled_time", "num_cached_tokens", "num_deaths", "num_preemptions", "request", "token_ids")

    def __init__(self, request: EngineCoreRequest) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.num_cached_tokens = -1
        self.num_preemptions = 0
        self.first_scheduled_time: float | None = None
        self.num_deaths = 0

    def take(self, output: EngineCoreOutput) -> None:
        """Note what an output brings."""
        self.token_ids += output.new_token_ids
        self.num_cached_tokens = output.num_cached_tokens
        self.num_preemptions = output.num_preemptions
        self.first_scheduled_time = output.first_scheduled_time
        self.num_deaths = 0

    def replay(self) -> EngineCoreRequest:
        """The request for a core that has never seen it."""
        return msgspec.structs.replace(
            self.request,
            output_token_ids=self.request.output_token_ids + self.token_ids,
            num_cached_tokens=self.num_cached_tokens,
            num_preemptions=self.num_preemptions,
            first_scheduled_time=self.first_scheduled_time,
            is_suspect=self.num_deaths > 0,
        )


class TotalsOfAllCores:
    """Makes the totals of one core those of all cores so far."""

    def __init__(self) -> None:
        self._before = SchedulerStats()
        self._now = SchedulerStats()

    def since_start(self, stats: SchedulerStats) -> SchedulerStats:
        """``stats`` of the present core, with its predecessors' totals added."""
        totals = {name: _sum(getattr(stats, name), getattr(self._before, name)) for name in TOTALS}
        self._now = msgspec.structs.replace(stats, **totals)
        return self._now

    def turn_page(self) -> None:
        """Another core begins to count from nothing."""
        self._before = self._now


def _sum(one: Count, other: Count) -> Count:
    """Of counts by place, place by place."""
    if isinstance(one, list) and isinstance(other, list):
        return [a + b for a, b in zip_longest(one, other, fillvalue=0)]
    return one + other
