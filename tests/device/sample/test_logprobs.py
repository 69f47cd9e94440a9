from __future__ import annotations

import math

import torch

from octavo.device.sample.logprobs import logprob_rows


def test_a_row_is_the_given_token_then_the_best_in_order() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0]])
    (row,) = logprob_rows(logits, torch.tensor([2]), [2])
    assert row.token_ids == [2, 1, 3]
    assert row.rank == 3
    total = math.log(1 + 2 * math.exp(2) + math.exp(1))
    for value, logit in zip(row.logprobs, [1.0, 2.0, 2.0], strict=True):
        assert math.isclose(value, logit - total, rel_tol=1e-5)


def test_rows_may_ask_for_different_numbers() -> None:
    logits = torch.arange(12.0).reshape(2, 6)
    none, everything = logprob_rows(logits, torch.tensor([0, 5]), [0, -1])
    assert none.token_ids == [0]
    assert none.rank == 6
    assert everything.token_ids == [5, 5, 4, 3, 2, 1, 0]


def test_more_than_the_vocabulary_is_the_vocabulary() -> None:
    (row,) = logprob_rows(torch.zeros(1, 4), torch.tensor([1]), [10])
    assert row.token_ids == [1, 0, 1, 2, 3]


def test_ids_that_cannot_be_chosen_are_not_listed() -> None:
    logits = torch.tensor([[0.0, -torch.inf, 1.0, -torch.inf]])
    (row,) = logprob_rows(logits, torch.tensor([2]), [4])
    assert row.token_ids == [2, 2, 0]
    assert all(math.isfinite(value) for value in row.logprobs)
