"""Whether a core makes progress, as its parent sees it."""

from __future__ import annotations

import time
from collections.abc import Callable

from octavo.engine.step_watch import StepWatchPage

LOOK_EVERY_S = 0.5
STUCK_STEP_FACTOR = 20
"""A step may take so many times what it was expected to."""


class CoreProgress:
    """Tells a core that is stuck from one that works or has nothing to do.

    Time counts only between two looks that follow soon on each other: whoever was itself stopped has seen nothing.
    """

    def __init__(self, page: StepWatchPage, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._page = page
        self._timeout_s = timeout_s
        self._clock = clock
        self._count = page.count
        self._looked_at = clock()
        self._limit_s = timeout_s
        self.stalled_s = 0.0
        """Seconds without progress, of those with work to do."""

    @property
    def is_late(self) -> bool:
        """Whether the core has been still for long enough to be worried."""
        return self.stalled_s > self._limit_s / 4

    def look(self, *, has_work: bool) -> bool:
        """Whether the core is stuck; to be called often."""
        now, count = self._clock(), self._page.count
        since, self._looked_at = now - self._looked_at, now
        if count != self._count or not has_work:
            self._count, self.stalled_s = count, 0.0
            return False
        self.stalled_s += min(since, 2 * LOOK_EVERY_S)
        self._limit_s = max(self._timeout_s, STUCK_STEP_FACTOR * self._page.expected_seconds)
        return self.stalled_s > self._limit_s
