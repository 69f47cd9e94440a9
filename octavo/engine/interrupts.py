"""Ctrl-C between the steps of a core, never in the middle of one."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import threading
from collections.abc import Iterator
from signal import SIGINT
from types import FrameType

# What the signal module is made of. That one looks every handler up among its enums, in vain and at the cost of an
# exception, which takes longer than all else that a step does here.
_get_handler, _set_handler = _signal.getsignal, _signal.signal


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Let the body finish before the program's own answer to Ctrl-C (KeyboardInterrupt, mostly) takes place.

    A step cut in half leaves a core that cannot go on. A second Ctrl-C does not wait. Nothing changes outside the main
    thread, which is the only one that signals reach, nor where SIGINT is ignored or ends the process.
    """
    handler = _get_handler(SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[FrameType | None] = []

    def hold(_signal_number: int, frame: FrameType | None) -> None:
        _set_handler(SIGINT, handler)
        held.append(frame)

    _set_handler(SIGINT, hold)
    try:
        yield
    finally:
        _set_handler(SIGINT, handler)
    if held:
        handler(SIGINT, held[0])
