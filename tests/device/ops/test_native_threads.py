"""The engine's own compute threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from octavo.device.ops.native.context import open_native
from octavo.device.ops.native.linear import pack_dense
from tests.waiting import soon

_native = pytest.importorskip("octavo._native", reason="built without the native module")


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("num_threads", [1, 2, 16])
def test_each_task_runs_once_on_a_thread_of_the_pool(num_threads: int, in_parts: bool) -> None:
    pool = _native.ThreadPool(num_threads)
    for num_tasks in (0, 1, 2, 7, 1000):
        threads = pool.threads_of_tasks(num_tasks, in_parts)
        assert len(threads) == num_tasks
        assert all(0 <= thread < num_threads for thread in threads)


def test_what_a_thread_of_a_pool_does_not_get_to_the_others_do() -> None:
    pool = _native.ThreadPool(8)  # more than there are CPUs: some come when all is done
    for _ in range(200):
        assert -1 not in pool.threads_of_tasks(13, in_parts=True)


_TOO_MANY_THREADS = """
import resource
from octavo.device.ops.native.context import open_native
from octavo.words.errors import ConfigError
used = 1024 * int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1])
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
try:
    open_native(1000)
except ConfigError as error:
    print(error)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="no such file on this system")
def test_threads_that_the_system_refuses_are_one_line_and_no_crash() -> None:
    done = subprocess.run([sys.executable, "-c", _TOO_MANY_THREADS], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("num_threads=1000 cannot be had: ")
    assert done.stdout.endswith("; ask for fewer threads\n")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own() -> None:
    pool = _native.ThreadPool(3)
    assert -1 not in pool.threads_of_tasks(100)
    child = os.fork()
    if child == 0:
        os._exit(0 if -1 not in pool.threads_of_tasks(100) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_threads_stay_on_their_cpus_and_the_caller_is_left_alone() -> None:
    before = os.sched_getaffinity(0)
    cpus = sorted(before)
    pool = _native.ThreadPool(2, [cpus[0], cpus[-1]])
    for _ in range(20):
        assert pool.cpus_of_threads()[1] == cpus[-1]
    assert os.sched_getaffinity(0) == before


def test_idle_threads_use_no_cpu() -> None:
    pool = _native.ThreadPool(4)
    pool.threads_of_tasks(100)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1


def total(pool: _native.ThreadPool, name: str) -> int:
    return sum(thread[name] for thread in pool.counts())


def sleeps_after_it_is_asked_no_more(pool: _native.ThreadPool) -> bool:
    before = pool.counts()[1]["waits_slept"]
    pool.threads_of_tasks(2)
    time.sleep(0.01)
    return bool(pool.counts()[1]["waits_slept"] > before)


def test_threads_look_for_the_next_job_and_sleep_when_none_comes_soon() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two threads of one CPU do not spin")
    pool = _native.ThreadPool(2)

    def found_the_next_job_awake() -> bool:
        for _ in range(100):
            pool.threads_of_tasks(2)
        return bool(pool.counts()[1]["waits_spun"])

    assert soon(lambda: pool.counts()[1]["waits_slept"] == 1, seconds=20)  # nothing has been asked of it yet
    assert soon(found_the_next_job_awake, seconds=20)
    assert soon(lambda: sleeps_after_it_is_asked_no_more(pool), seconds=20)


def test_more_threads_than_cpus_do_not_take_turns_at_looking() -> None:
    pool = _native.ThreadPool(len(os.sched_getaffinity(0)) + 1)
    for _ in range(100):
        pool.threads_of_tasks(100)
    assert soon(lambda: total(pool, "waits_slept") > 0, seconds=20)  # they may not even have started
    assert total(pool, "waits_spun") == 0


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("slow", [0, 500, 999])
def test_while_a_thread_is_at_a_slow_task_the_others_do_all_the_rest(slow: int, in_parts: bool) -> None:
    pool = _native.ThreadPool(3)
    assert -1 not in pool.threads_of_tasks(1000, in_parts, slow)
    with pytest.raises(RuntimeError, match="waited for the thread"):
        _native.ThreadPool(1).threads_of_tasks(1000, in_parts, 500, patience=0.01)


def page_faults() -> dict[int, int]:
    """Pages first touched by each thread of this process."""
    stats = {int(task.name): (task / "stat").read_text() for task in Path("/proc/self/task").iterdir()}
    return {thread: int(stat.rpartition(")")[2].split()[7]) for thread, stat in stats.items()}


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="no /proc on this system")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_thread_that_reads_a_part_of_the_weights_was_the_first_to_touch_it(dtype: torch.dtype) -> None:
    before = page_faults()
    native = open_native(2, "auto")
    (other,) = page_faults().keys() - before.keys()
    caller = os.getpid()
    weight = torch.randn(2 * 64, 1 << 16).to(dtype)  # two tasks at least, that take a while
    x = torch.ones(1, weight.shape[1], dtype=dtype)

    def each_keeps_to_its_part() -> bool:
        helped, faults = total(native.pool, "helped_tasks"), page_faults()
        packed = pack_dense(native, weight)
        touched = {thread: count - faults[thread] for thread, count in page_faults().items() if thread in faults}
        own = [thread["own_tasks"] for thread in native.pool.counts()]
        packed.project(x)
        read = [thread["own_tasks"] - count for thread, count in zip(native.pool.counts(), own, strict=True)]
        alone = total(native.pool, "helped_tasks") == helped and min(own) > 0 and min(read) > 0
        return alone and touched[caller] > 0 and touched[other] > 0

    assert soon(each_keeps_to_its_part, seconds=60)
