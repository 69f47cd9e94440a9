"""The C library's allocator, as far as the engine has a say in it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable


def return_freed_memory() -> None:
    """Give pages that hold nothing any more back to the system.

    glibc keeps what was freed on its heap, even tensors of several MB once tensors of that size have been freed before:
    without this the weights of a second engine in a process would be in memory twice. Nothing happens where the
    C library has no such call.
    """
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
