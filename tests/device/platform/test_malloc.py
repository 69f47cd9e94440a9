from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from octavo.device.platform.malloc import return_freed_memory

MIB = 1 << 20


def anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon:")) * 1024


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_memory_freed_below_what_is_in_use_goes_back_to_the_system() -> None:
    blocks = [ctypes.create_string_buffer(b"1" * 100_000) for _ in range(1000)]  # small: on the heap, not mapped
    lasting = ctypes.create_string_buffer(b"1" * 100_000)
    full = anonymous_bytes()
    del blocks
    return_freed_memory()
    assert anonymous_bytes() < full - 80 * MIB
    assert lasting[99_999] == b"1"
