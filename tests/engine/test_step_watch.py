from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from octavo.engine.step_watch import PAGE_BYTES, SharedStepWatch, StepTimes, StepWatchPage
from octavo.words.messages import SchedulerOutput


def step(step_id: int, **num_tokens: int) -> SchedulerOutput:
    return SchedulerOutput(
        step_id=step_id, num_scheduled_tokens=num_tokens, total_num_scheduled_tokens=sum(num_tokens.values())
    )


@pytest.fixture
def page() -> Iterator[StepWatchPage]:
    page = StepWatchPage()
    yield page
    page.close()
    page.close()


def test_the_page_names_the_requests_of_all_steps_in_flight(page: StepWatchPage) -> None:
    watch = SharedStepWatch(page.fd)
    assert (page.count, page.running_ids()) == (0, [])
    watch.launched(step(1, a=4, b=1))
    assert (page.count, page.running_ids()) == (1, ["a", "b"])
    watch.launched(step(2, b=1, c=1))
    assert page.running_ids() == ["a", "b", "c"]
    watch.returned(step(1, a=4, b=1))
    assert (page.count, page.running_ids()) == (3, ["b", "c"])
    watch.lost()
    assert page.running_ids() == []
    watch.blame(["b"])
    assert page.running_ids() == ["b"]


def test_more_names_than_fit_are_nobody_knows_whose(page: StepWatchPage) -> None:
    watch = SharedStepWatch(page.fd)
    watch.launched(step(1, **{f"{number:0100d}": 1 for number in range(PAGE_BYTES // 100)}))
    assert (page.count, page.running_ids()) == (1, None)
    watch.returned(step(1))
    assert page.running_ids() == []


WRITE_AND_DIE = """
import os, sys
from octavo.engine.step_watch import SharedStepWatch
from octavo.words.messages import SchedulerOutput
watch = SharedStepWatch(int(sys.argv[1]))
watch.launched(SchedulerOutput(step_id=1, num_scheduled_tokens={"b\u00e9": 1}, total_num_scheduled_tokens=1))
os.kill(os.getpid(), 9)
"""


def test_the_page_outlives_a_killed_writer(page: StepWatchPage) -> None:
    subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(page.fd)], pass_fds=(page.fd,), timeout=60, check=False)
    assert page.running_ids() == ["b\u00e9"]


def test_the_page_has_no_name_on_disk_and_closes(page: StepWatchPage) -> None:
    assert os.fstat(page.fd).st_nlink == 0
    before = len(os.listdir("/proc/self/fd"))
    other = StepWatchPage()
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_step_is_expected_to_take_what_its_like_took_and_a_larger_one_more() -> None:
    times = StepTimes()
    assert times.expect(100) == 0.0
    times.note(1, 0.02)
    assert times.expect(1) == 0.02
    assert times.expect(100) == pytest.approx(2.0)
    times.note(64, 0.1)
    assert times.expect(100) == pytest.approx(0.1 * 100 / 64)
    assert times.expect(80) == pytest.approx(0.125)
    times.note(64, 0.2)
    assert times.expect(64) == 0.2
