"""Counter-based random numbers: a number is a pure function of what it is for, and there is no state anywhere.

(seed, choice index, absolute position, purpose) name a stream through Philox4x32-10 (Salmon et al., "Parallel random
numbers: as easy as 1, 2, 3", SC11); within a stream, the token id counts along SplitMix64 (Steele et al., "Fast
splittable pseudorandom number generators", OOPSLA 2014). So a sample does not depend on batch-mates, chunking,
preemption, process or replay.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
KEY_STEPS = np.array([0x9E3779B9, 0xBB67AE85], dtype=np.uint64)
ROUNDS = 10
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)
LOW_WORD = np.uint64(0xFFFFFFFF)
WORD_BITS = np.uint64(32)


class Purpose(enum.IntEnum):
    """What a number is drawn for. Numbers of different purposes are independent; values are never reused."""

    TOKEN = 0
    DRAFT = 1
    ACCEPT = 2
    RECOVER = 3


def stream_keys(
    seeds: npt.NDArray[np.int64] | Sequence[int],
    choice_indices: npt.NDArray[np.int64] | Sequence[int],
    positions: npt.NDArray[np.int64] | Sequence[int],
    purpose: Purpose | npt.NDArray[np.uint32],
) -> npt.NDArray[np.uint64]:
    """The stream of each row, named by 64 random bits.

    seeds:     [R], 0 .. 2**63 - 1: the Philox key.
    positions: [R], absolute position of the token in its request: with choice index and purpose, the counter.
    """
    seed = np.asarray(seeds, dtype=np.uint64)
    counter = np.zeros((seed.size, 4), dtype=np.uint64)
    counter[:, 0] = positions
    counter[:, 1] = choice_indices
    counter[:, 2] = purpose
    words = philox4x32(counter, np.stack([seed & LOW_WORD, seed >> WORD_BITS], axis=1))
    return (words[:, 0] << WORD_BITS) | words[:, 1]


def exponentials(keys: npt.NDArray[np.uint64], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Independent numbers of the standard exponential distribution, above 0: one per token id of each row's stream.

    keys: [R]; ids: [V] (the same for all rows) or [R, K]. Returns [R, V] or [R, K].
    """
    return -np.log1p(-uniforms(keys, ids))


def uniforms(keys: npt.NDArray[np.uint64], ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """The same of the uniform distribution, in (0, 1)."""
    bits = splitmix64(keys[:, None], ids.astype(np.uint64))
    return ((bits >> np.uint64(11)) + 0.5) * 2.0**-53


def splitmix64(seed: npt.NDArray[np.uint64], index: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Output number ``index`` (from 0) of the SplitMix64 generator that starts at ``seed``; shapes are broadcast."""
    z = seed + (index + np.uint64(1)) * GOLDEN_GAMMA
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


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
