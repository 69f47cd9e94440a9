"""What this process holds of the system."""

from __future__ import annotations

import gc
import threading

import psutil


def held() -> tuple[int, int, int]:
    """File descriptors, threads and child processes, without those that only wait to be collected."""
    gc.collect()
    process = psutil.Process()
    return process.num_fds(), threading.active_count(), len(process.children())
