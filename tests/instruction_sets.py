"""Which row of the native kernels serves an op, where an instruction set has no kernels of its own for it."""

from __future__ import annotations

import re

OF_TILES = re.compile(r"linear(_gated|_int8|_q\d_\w)?|paged_attention(_\w+)?")
"""What AMX has kernels for; it takes all others from AVX-512."""


def row_of(kernel: str, isa: str) -> str:
    """The instruction set by which the counter of ``kernel`` says that it ran under ``isa``."""
    return "avx512" if isa == "amx" and not OF_TILES.fullmatch(kernel) else isa


def counter_of(kernel: str, isa: str) -> str:
    """The name of that counter."""
    return f"{kernel}.{row_of(kernel, isa)}"
