"""Who turns GGUF blocks into numbers: the native library where it can, else numpy. Both give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import torch
from torch import Tensor

from octavo.device.loader.gguf_dequant import Bytes, dequantize_rows

try:
    from octavo import _native
except ImportError:
    _native = None

Dequantizer = Callable[[str, Bytes, Tensor], None]
"""Fills a tensor [num_rows, columns] from rows [num_rows, row bytes] of the named format, on the calling thread."""

NATIVE_DTYPES = (torch.float32, torch.bfloat16)


def dequantizer(dtype: torch.dtype, native: ModuleType | None = _native) -> Dequantizer:
    """The fastest there is for parameters of ``dtype``; ``native`` is the library, None where it is not installed."""
    return native.dequantize if native is not None and dtype in NATIVE_DTYPES else dequantize_rows
