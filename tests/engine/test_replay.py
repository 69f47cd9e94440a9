"""What goes on over the end of a core."""

from __future__ import annotations

from octavo.engine.replay import TotalsOfAllCores
from octavo.words.messages import SchedulerStats


def test_totals_go_on_over_cores_and_what_is_so_at_this_moment_does_not() -> None:
    totals = TotalsOfAllCores()
    totals.since_start(SchedulerStats(num_running=3, kv_cache_usage=0.5, num_steps=10, num_drafts=4))
    totals.turn_page()
    now = totals.since_start(SchedulerStats(num_running=1, kv_cache_usage=0.1, num_steps=2, num_drafts=1))
    assert (now.num_steps, now.num_drafts) == (12, 5)
    assert (now.num_running, now.kv_cache_usage) == (1, 0.1)


def test_right_drafts_are_added_up_place_by_place() -> None:
    totals = TotalsOfAllCores()
    totals.since_start(SchedulerStats(num_accepted_tokens_per_pos=[5, 2, 1]))
    totals.turn_page()
    assert totals.since_start(SchedulerStats()).num_accepted_tokens_per_pos == [5, 2, 1]
    assert totals.since_start(SchedulerStats(num_accepted_tokens_per_pos=[1, 1])).num_accepted_tokens_per_pos == [
        6,
        3,
        1,
    ]


def test_two_deaths_add_up() -> None:
    totals = TotalsOfAllCores()
    for _ in range(2):
        totals.since_start(SchedulerStats(num_bursts=3))
        totals.turn_page()
    assert totals.since_start(SchedulerStats(num_bursts=1)).num_bursts == 7
