"""The engine core as a process of its own: ``python -m octavo.engine.core_proc FOLDER PARENT_PID WATCH_FD PRELOAD``.

Started by CoreProcess, never by ``fork`` or by importing the user's script again, so scripts need no main guard.
PRELOAD names the module that takes longest to import: that begins at once, while the parent still finds out what this
core is to be. Nothing else is imported here but what ends this process with its parent.
"""

from __future__ import annotations

import contextlib
import signal
import sys
from importlib import import_module

from octavo.device.platform.torch_import import import_torch_lazily
from octavo.engine.parent_watch import PARENTS_SIGNALS, die_with_parent
from octavo.util.collector import paused_collector


def main(folder: str, parent_pid: int, watch_fd: int, preload: str) -> int:
    """Import everything, then be a core; returns the exit code."""
    for number in PARENTS_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(parent_pid)
    import_torch_lazily()
    with paused_collector():
        if preload:
            with contextlib.suppress(Exception):  # found again, and told, where the module is needed
                import_module(preload)
        from octavo.engine.core_loop import run_core
    return run_core(folder, watch_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
