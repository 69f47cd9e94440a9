"""Waiting for what another thread or process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def soon(holds: Callable[[], bool], seconds: float) -> bool:
    """Whether something comes true within some seconds."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
