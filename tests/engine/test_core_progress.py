"""A core that is stuck is told from one that works, or has nothing to do."""

from __future__ import annotations

from octavo.engine.core_progress import CoreProgress


class Watched:
    """A core's progress at chosen times."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self.now = 0.0
        self.count = 0
        self.expected_seconds = 0.0
        self.progress = CoreProgress(self, timeout_s, clock=lambda: self.now)  # type: ignore[arg-type]

    def look(self, seconds: float, *, has_work: bool = True, count: int | None = None) -> bool:
        """Look every half second for so long; whether the core was found stuck at the end."""
        self.count = self.count if count is None else count
        found = False
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            found = self.progress.look(has_work=has_work)
        return found


def test_a_core_with_nothing_to_do_or_that_counts_on_is_not_stuck() -> None:
    core = Watched()
    assert not core.look(500, has_work=False)
    assert not core.look(59)
    assert core.progress.is_late
    assert not core.look(1, count=1)
    assert not core.progress.is_late
    assert core.look(61)


def test_a_long_step_has_twenty_times_as_long() -> None:
    core = Watched()
    core.expected_seconds = 10.0
    assert not core.look(199)
    assert core.look(2)


def test_time_during_which_the_supervisor_itself_was_stopped_does_not_count() -> None:
    core = Watched()
    core.look(1)
    core.now += 3600
    assert not core.look(1)
    assert core.progress.stalled_s < 5
