from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.sample.logprobs import logprob_rows
from octavo.device.sample.prompt_logprobs import TILE_BYTES, PromptLogprobs
from octavo.words.messages import NewRequestData, ResolvedSampling
from octavo.words.sampling_params import SamplingParams

VOCAB_SIZE = 30


class Output:
    """An output layer that notes how many rows it was asked for."""

    def __init__(self) -> None:
        self.weight = torch.randn(6, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
        self.rows: list[int] = []

    def __call__(self, hidden: Tensor) -> Tensor:
        self.rows.append(len(hidden))
        return hidden @ self.weight


def test_rows_come_in_tiles_and_are_those_of_the_whole() -> None:
    output = Output()
    hidden = torch.randn(7, 6, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([3, 29, 0, 5, 5, 8, 11])
    two_rows_per_tile = TILE_BYTES // 8
    rows, problem = PromptLogprobs().score(hidden, targets, 2, output, two_rows_per_tile)
    assert problem is None
    assert output.rows == [2, 2, 2, 1]
    assert [row.token_ids for row in rows] == [
        row.token_ids for row in logprob_rows(output(hidden), targets, [2] * len(targets))
    ]


def test_a_bad_tile_ends_it_with_the_reason() -> None:
    hidden = torch.randn(5, 6, generator=torch.Generator().manual_seed(1))
    hidden[3] = torch.nan
    rows, problem = PromptLogprobs().score(hidden, torch.arange(5), 0, Output(), TILE_BYTES // 8)
    assert len(rows) == 2
    assert problem is not None
    assert "NaN" in problem


def test_only_slots_that_ask_are_scored_until_they_are_removed() -> None:
    asked = PromptLogprobs()
    for slot, wanted in ((0, None), (1, 5), (2, 0)):
        sampling = ResolvedSampling(
            params=SamplingParams(prompt_logprobs=wanted), seed=0, max_tokens=1, num_text_tokens=VOCAB_SIZE
        )
        request = NewRequestData(
            request_id="r",
            prompt_token_ids=[1],
            output_token_ids=[],
            sampling=sampling,
            block_ids=(),
            num_computed_tokens=0,
        )
        asked.add(slot, request)
    assert asked.asking([2, 0, 1]) == [(0, 0), (2, 5)]
    asked.remove(2)
    assert asked.asking([2, 0, 1]) == [(2, 5)]
