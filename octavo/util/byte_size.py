"""Byte counts as people write and read them."""

from __future__ import annotations

import re

_POWERS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
_SPELLING = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(|[KMGT]I?)B?\s*", re.IGNORECASE)
_STEPS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def parse_byte_size(text: str) -> int:
    """Bytes that ``text`` stands for: ``4096``, ``1.5G`` (powers of ten) or ``512MiB`` (powers of two).

    Raises ValueError for anything else.
    """
    match = _SPELLING.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no size in bytes; write a number, or one with K M G T KiB MiB GiB TiB")
    return int(float(match[1]) * _POWERS[match[2].upper()])


def format_byte_size(num_bytes: int) -> str:
    """``num_bytes`` with two decimals in the largest binary unit that fits: ``1.50 GiB``."""
    for size, unit in _STEPS:
        if abs(num_bytes) >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{num_bytes} B"
