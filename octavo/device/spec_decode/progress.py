"""How far a drafter with a cache of its own has come in each request, and which blocks it has filled.

A drafter's keys and values lie in the blocks of its model, so a prefix found in the cache may be known to it too:
unless nothing was guessed for the request that filled the block. A block that is wrongly taken for filled would make
guesses bad and no answer wrong.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.device.spec_decode.drafter import SaidTokens
from octavo.words.messages import NewRequestData


class Blocks(Protocol):
    """Which block holds a token of a request."""

    block_size: int

    def block_ids(self, slots: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int32]:
        """The blocks of these tokens, [T]; slots and positions are both [T]."""
        ...


class Progress:
    """``computed`` [slots] int64: tokens of each request whose keys and values the drafter has, from the first on."""

    def __init__(self, blocks: Blocks, num_blocks: int, max_num_requests: int) -> None:
        self.computed = np.zeros(max_num_requests, dtype=np.int64)
        self._blocks = blocks
        self._is_filled = np.zeros(num_blocks, dtype=np.bool_)

    def add(self, slot: int, request: NewRequestData, block_ids: list[int]) -> None:
        """A request starts, with these blocks: the first of them may be filled."""
        num_hit = request.num_computed_tokens // self._blocks.block_size
        self._is_filled[block_ids[num_hit:]] = False
        hit = self._is_filled[block_ids[:num_hit]]
        num_filled = num_hit if hit.all() else int(hit.argmin())
        self.computed[slot] = num_filled * self._blocks.block_size

    def note(self, said: SaidTokens) -> None:
        """Forget what a step has made untrue: wrong drafts, and what was in the blocks that it wrote."""
        slots = said.slots
        self.computed[slots] = np.minimum(self.computed[slots], said.num_computed + said.num_kept)
        counts = said.num_kept
        positions = np.arange(counts.sum()) + (said.num_computed - counts.cumsum() + counts).repeat(counts)
        self._is_filled[self._blocks.block_ids(slots.repeat(counts), positions)] = False

    def advance(
        self, slots: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], num_known: npt.NDArray[np.int64]
    ) -> None:
        """The drafter has come to ``ends``; of each request so many tokens are known, the others are guesses."""
        size = self._blocks.block_size
        firsts, lasts = self.computed[slots] // size, np.minimum(ends, num_known) // size
        for slot, first, last in zip(slots.tolist(), firsts.tolist(), lasts.tolist(), strict=True):
            if last > first:
                positions = np.arange(first, last) * size
                self._is_filled[self._blocks.block_ids(np.full(last - first, slot), positions)] = True
        self.computed[slots] = ends
