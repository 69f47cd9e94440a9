"""Randomness of the operating system, fetched for many uses at a time.

Every question to the system makes a thread give up its turn, and to get it back takes far longer than the answer.
"""

from __future__ import annotations

import os
from collections import deque

_PIECE_BYTES = 16
_PIECES = 256


class OsRandom:
    """Unpredictable ids and numbers, each handed out once. Safe in any thread; not to be used in a forked process."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()

    def hex(self) -> str:
        """128 bits as 32 hexadecimal digits."""
        return self._next().hex()

    def number(self) -> int:
        """63 bits as a number."""
        return int.from_bytes(self._next()[:8], "little") >> 1

    def _next(self) -> bytes:
        while True:
            try:
                return self._pieces.popleft()
            except IndexError:
                data = os.urandom(_PIECE_BYTES * _PIECES)
                self._pieces.extend(data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
