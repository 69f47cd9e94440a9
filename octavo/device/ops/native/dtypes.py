"""The number types of native kernels."""

from __future__ import annotations

import torch

from octavo.words.errors import UnsupportedError


def is_bfloat16(dtype: torch.dtype) -> bool:
    """Whether the kernel for bfloat16 is meant, or that for float32. Raises UnsupportedError for any other type."""
    if dtype not in (torch.bfloat16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        raise UnsupportedError(f"native kernels compute in float32 and bfloat16, not in {name}: choose one of these")
    return bool(dtype == torch.bfloat16)
