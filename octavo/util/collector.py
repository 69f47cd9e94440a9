"""Python's garbage collector, which a start need not suffer."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """Collect nothing inside; afterwards the collector is as it was, also where the block raised.

    A start imports and builds some hundred thousand objects that all stay, and the collector would look at them again
    and again. For the same reason those that are there at the end count as old: the next collection of young objects
    passes them by, a full one does not. Pauses may nest, and overlap in several threads.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        if gc.get_freeze_count() == 0:  # else somebody has frozen objects, and wants them to stay so
            gc.freeze()
            gc.unfreeze()  # out of the permanent generation, into the oldest
        gc.enable()
