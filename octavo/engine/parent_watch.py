"""A child that ends when its parent does, however the parent ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

PARENTS_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
"""What a terminal or a service manager sends to every process at once: the parent decides what follows."""

PR_SET_PDEATHSIG = 1
POLL_S = 0.5


def die_with_parent(parent_pid: int) -> None:
    """Make the end of ``parent_pid`` the end of this process.

    On Linux the kernel does it, also while this process is busy in C code. (It watches the thread that started us:
    ProcessClient starts us from a thread that lives as long as we do.) Elsewhere a thread looks twice a second.
    """
    if not _ask_the_kernel():
        threading.Thread(target=_watch, args=(parent_pid,), name="octavo-parent-watch", daemon=True).start()
    if os.getppid() != parent_pid:  # it died before we asked
        os._exit(1)


def _ask_the_kernel() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(POLL_S)
    os._exit(1)
