"""Ctrl-C between the steps of a core, never in the middle of one."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let the body finish before the program's own answer to Ctrl-C (KeyboardInterrupt, mostly) takes place.

    A step cut in half leaves a core that cannot go on. A second Ctrl-C does not wait. Nothing changes outside the main
    thread, which is the only one that signals reach, nor where SIGINT is ignored or ends the process.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[FrameType | None] = []

    def hold(_signal_number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, handler)
        held.append(frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if held:
        handler(signal.SIGINT, held[0])
