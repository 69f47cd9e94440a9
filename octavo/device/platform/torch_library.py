"""Torch's library, loaded by a thread while a command still imports its own parts."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.machinery import PathFinder
from threading import Thread
from typing import TYPE_CHECKING

from octavo.util.collector import paused_collector

if TYPE_CHECKING:
    from collections.abc import Iterator  # imports more than a start needs

BEFORE_TORCH = (
    *("numpy", "msgspec", "markupsafe._speedups", "safetensors._safetensors_rust"),
    *("_bisect", "_blake2", "_bz2", "_csv", "_hashlib", "_heapq", "_json", "_lzma", "_posixsubprocess", "_queue"),
    *("_random", "_sha512", "array", "binascii", "fcntl", "mmap", "resource", "select", "zlib"),
)
"""What our own imports load of libraries. One is loaded at a time, so these would wait for torch's."""


@contextmanager
def importing_an_engine() -> Iterator[None]:
    """Around a command's imports of its own engine: torch's library loads beside them, and nothing is collected."""
    begin_loading_torch()
    with paused_collector():
        yield


def begin_loading_torch() -> None:
    """Have a thread load the library that ``import torch`` spends a third of its time on, beside other imports.

    Does nothing where torch is imported already or not there; what else is wrong ``import torch`` will tell.
    """
    spec = None if "torch" in sys.modules else PathFinder.find_spec("torch")
    if spec is None or spec.origin is None:
        return
    library = os.path.join(os.path.dirname(spec.origin), "lib", "libtorch_cpu.so")
    if not os.path.exists(library):
        return
    for name in BEFORE_TORCH:
        with suppress(ImportError):
            import_module(name)
    Thread(target=_load_library, args=(library,), name="octavo-torch").start()


def _load_library(path: str) -> None:
    import ctypes

    load = ctypes.CDLL(None).dlopen  # called so, and not through CDLL, it holds no lock of Python's
    load.argtypes, load.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    load(os.fsencode(path), os.RTLD_NOW)
