"""Verification by exact match: a draft is right if it is what the model itself samples there.

A row's sample depends on the tokens before it and on nothing else (its random numbers are those of its position), so
the tokens after right drafts are, to the bit, those of plain decoding at any temperature.
"""

from __future__ import annotations

from collections.abc import Sequence


def num_right(sampled: Sequence[int], drafts: Sequence[int]) -> int:
    """How many drafts are right, up to the first wrong one.

    ``sampled``: what the model says after the newest token, and after each of the ``drafts`` that follow it.
    """
    for index, draft in enumerate(drafts):
        if draft != sampled[index]:
            return index
    return len(drafts)
