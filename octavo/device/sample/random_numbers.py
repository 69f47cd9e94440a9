"""Counter-based random numbers: Philox4x32-10 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC11).

A number is a pure function of (seed, choice index, absolute position, purpose). There is no state to keep, to share
or to restore, so a sample does not depend on batch-mates, chunking, preemption, process or replay.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
ROUNDS = 10
LOW_WORD = np.uint64(0xFFFFFFFF)
WORD_BITS = np.uint64(32)


class Purpose(enum.IntEnum):
    """What a number is drawn for. Numbers of different purposes are independent; values are never reused."""

    TOKEN = 0


def uniform(
    seeds: npt.NDArray[np.int64] | Sequence[int],
    choice_indices: npt.NDArray[np.int64] | Sequence[int],
    positions: npt.NDArray[np.int64] | Sequence[int],
    purpose: Purpose,
) -> npt.NDArray[np.float64]:
    """One number in [0, 1) per row, with 53 random bits.

    seeds:     [R], 0 .. 2**63 - 1: the Philox key.
    positions: [R], absolute position of the token in its request: with choice index and purpose, the counter.
    """
    seed = np.asarray(seeds, dtype=np.uint64)
    counter = np.zeros((seed.size, 4), dtype=np.uint64)
    counter[:, 0] = positions
    counter[:, 1] = choice_indices
    counter[:, 2] = int(purpose)
    key = np.stack([seed & LOW_WORD, seed >> WORD_BITS], axis=1)
    words = philox4x32(counter, key)
    # 53 of 64 bits: the high 27 of word 0 above the high 26 of word 1.
    return ((words[:, 0] >> np.uint64(5)) * 2.0**26 + (words[:, 1] >> np.uint64(6))) * 2.0**-53


def philox4x32(counter: npt.NDArray[np.uint64], key: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Ten rounds of Philox4x32 for each row.

    counter: [N, 4], key: [N, 2]; 32-bit words held in uint64. Returns [N, 4] of the same kind.
    """
    c0, c1, c2, c3 = counter.T
    k0, k1 = key.T
    for _ in range(ROUNDS):
        low, high = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (high >> WORD_BITS) ^ c1 ^ k0,
            high & LOW_WORD,
            (low >> WORD_BITS) ^ c3 ^ k1,
            low & LOW_WORD,
        )
        k0, k1 = (k0 + KEY_STEPS[0]) & LOW_WORD, (k1 + KEY_STEPS[1]) & LOW_WORD
    return np.stack([c0, c1, c2, c3], axis=1)
