"""The engine's own compute threads."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

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
