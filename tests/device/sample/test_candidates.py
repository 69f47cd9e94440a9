from __future__ import annotations

import pytest
import torch

from octavo.device.sample.candidates import best_candidates, best_ids, ranks


def in_order(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))


def coarse_logits(rows: int, vocab_size: int) -> torch.Tensor:
    """Logits with many equal values."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(-6, 6, (rows, vocab_size), generator=generator).float()


@pytest.mark.parametrize("k", [1, 3, 20, 200, 400])
def test_candidates_come_by_logit_then_by_id(k: int) -> None:
    logits = coarse_logits(5, 400)
    values, ids = best_candidates(logits, k)
    assert ids.tolist() == [in_order(row)[:k] for row in logits.tolist()]
    assert torch.equal(values, logits.gather(-1, ids))


def test_candidates_of_a_row_do_not_depend_on_the_ties_of_another() -> None:
    logits = torch.zeros(2, 400)
    logits[0] = torch.arange(400.0)
    assert best_candidates(logits, 2)[1].tolist() == [[399, 398], [0, 1]]


def test_masked_ids_are_no_ties() -> None:
    logits = torch.full((1, 400), -torch.inf)
    logits[0, 9], logits[0, 4] = 1.0, 2.0
    values, ids = best_candidates(logits, 3)
    assert ids[0, :2].tolist() == [4, 9]
    assert values[0, 2] == -torch.inf


def test_the_best_of_equal_logits_is_the_lowest_id() -> None:
    logits = torch.zeros(2, 50_000)
    logits[1, [40_000, 17, 30_000]] = 2.0
    assert best_ids(logits).tolist() == [0, 17]


def test_a_rank_is_the_place_in_the_order() -> None:
    logits = coarse_logits(3, 100)
    ids = torch.tensor([0, 50, 99])
    expected = [in_order(row).index(i) + 1 for row, i in zip(logits.tolist(), ids.tolist(), strict=True)]
    assert ranks(logits, ids).tolist() == expected
