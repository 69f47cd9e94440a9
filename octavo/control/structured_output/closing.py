"""How JSON is brought to its end where tokens run short: of what a grammar allows, only what ends it soonest."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

Row = npt.NDArray[np.int32]

INSIDE_TEXT = re.compile(rb"[A-DF-Z~^|#@]")
"""Single bytes that stand in JSON's texts alone: where one may come, a bracket closes nothing."""

CLOSING_TEXT = re.compile(rb'"[}\]]*')
SOONEST = (
    re.compile(rb"[}\]]+"),
    re.compile(rb'[,:]"?'),
    re.compile(rb'"'),
    re.compile(rb"[^\s{\[]+"),
    re.compile(rb"\S+"),
)
"""Outside of texts, best first: close, go on to what is required, begin a text; no blanks, and rather no new level."""


class JsonCloser:
    """Knows a vocabulary's tokens by what they do to JSON."""

    def __init__(self, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        ends = frozenset(eos_token_ids)
        self._ends = _row(len(tokens), ends.__contains__)
        self._inside_text = _matching(tokens, INSIDE_TEXT)
        self._closing_text = _matching(tokens, CLOSING_TEXT)
        self._soonest = [_matching(tokens, pattern) for pattern in SOONEST]

    def narrow(self, row: Row) -> None:
        """Leave of a mask's row the tokens that end the JSON soonest; never none."""
        is_inside = (row & self._inside_text).any()
        for choice in (self._ends, *([self._closing_text] if is_inside else self._soonest)):
            left = row & choice
            if left.any():
                row[:] = left
                return


def _matching(tokens: Sequence[bytes], pattern: re.Pattern[bytes]) -> Row:
    return _row(len(tokens), lambda token_id: pattern.fullmatch(tokens[token_id]) is not None)


def _row(num_tokens: int, takes: Callable[[int], bool]) -> Row:
    bits = np.zeros((num_tokens + 31) // 32 * 32, dtype=np.uint8)
    bits[:num_tokens] = [takes(token_id) for token_id in range(num_tokens)]
    return np.packbits(bits, bitorder="little").view(np.int32)
