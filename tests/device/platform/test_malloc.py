from __future__ import annotations

import ctypes

import pytest

from octavo.device.platform.malloc import return_freed_memory
from tests.memory import anonymous_bytes

MIB = 1 << 20


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="not glibc")
def test_memory_freed_below_what_is_in_use_goes_back_to_the_system() -> None:
    blocks = [ctypes.create_string_buffer(b"1" * 100_000) for _ in range(1000)]  # small: on the heap, not mapped
    lasting = ctypes.create_string_buffer(b"1" * 100_000)
    full = anonymous_bytes()
    del blocks
    return_freed_memory()
    assert anonymous_bytes() < full - 80 * MIB
    assert lasting[99_999] == b"1"
