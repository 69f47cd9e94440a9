from __future__ import annotations

import numpy as np
import torch

from octavo.device.spec_decode.drafter import SaidTokens
from octavo.device.spec_decode.progress import Progress
from octavo.words.messages import NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams

SIZE = 4
BLOCKS = {0: [1, 2, 3, 4], 1: [1, 2, 5, 6]}
"""Blocks of each slot; the second request shares the first two."""


class Table:
    """A block table."""

    block_size = SIZE

    def block_ids(self, slots: np.ndarray, positions: np.ndarray) -> np.ndarray:
        pairs = zip(slots.tolist(), (positions // SIZE).tolist(), strict=True)
        return np.array([BLOCKS[slot][column] for slot, column in pairs], dtype=np.int32)


def array(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def start(progress: Progress, slot: int, num_computed: int) -> None:
    sampling = ResolvedSampling(params=SamplingParams(), seed=0, max_tokens=9, num_text_tokens=9)
    request = NewRequestData(
        request_id=str(slot),
        prompt_token_ids=[1] * 14,
        output_token_ids=[],
        sampling=sampling,
        block_ids=(BLOCKS[slot],),
        num_computed_tokens=num_computed,
    )
    progress.add(slot, request, BLOCKS[slot])


def said(slot: int, num_computed: int, num_kept: int) -> SaidTokens:
    return SaidTokens(
        request_ids=[str(slot)],
        slots=array(slot),
        token_ids=np.zeros((2, 20), dtype=np.int32),
        num_tokens=array(num_computed + num_kept + 1),
        num_computed=array(num_computed),
        num_kept=array(num_kept),
        is_sampled=np.ones(1, dtype=np.bool_),
        hidden=torch.zeros(num_kept, 1),
        first_rows=array(0),
    )


def test_a_request_that_starts_from_nothing_is_at_its_first_token() -> None:
    progress = Progress(Table(), num_blocks=8, max_num_requests=2)
    start(progress, 0, 0)
    assert progress.computed[0] == 0


def test_a_prefix_that_the_drafter_has_filled_need_not_be_computed_again() -> None:
    progress = Progress(Table(), num_blocks=8, max_num_requests=2)
    start(progress, 0, 0)
    progress.note(said(0, 0, 13))
    progress.advance(array(0), array(13), array(14))
    start(progress, 1, 8)
    assert progress.computed[1] == 8


def test_of_a_prefix_that_was_filled_in_part_that_part_counts() -> None:
    progress = Progress(Table(), num_blocks=8, max_num_requests=2)
    start(progress, 0, 0)
    progress.note(said(0, 0, 13))
    progress.advance(array(0), array(7), array(14))
    start(progress, 1, 8)
    assert progress.computed[1] == 4


def test_guesses_fill_no_block_and_wrong_ones_are_taken_back() -> None:
    progress = Progress(Table(), num_blocks=8, max_num_requests=2)
    start(progress, 0, 0)
    progress.note(said(0, 0, 6))
    progress.advance(array(0), array(9), array(7))
    assert progress.computed[0] == 9
    progress.note(said(0, 6, 1))
    assert progress.computed[0] == 7
    start(progress, 1, 8)
    assert progress.computed[1] == 4, "the second block was guessed"


def test_blocks_that_others_get_are_empty_again() -> None:
    progress = Progress(Table(), num_blocks=8, max_num_requests=2)
    start(progress, 0, 0)
    progress.note(said(0, 0, 13))
    progress.advance(array(0), array(13), array(14))
    progress.note(said(1, 0, 8))  # a request for which nothing is guessed writes the shared blocks anew
    start(progress, 1, 8)
    assert progress.computed[1] == 0
