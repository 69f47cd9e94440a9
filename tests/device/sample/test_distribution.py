from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.device.sample.distribution import NUCLEUS_WINDOW, Filters, draw
from octavo.device.sample.random_numbers import Purpose, stream_keys

MANY = 20_000
FIVE_SIGMA = 5 * (0.25 / MANY) ** 0.5


def filters(rows: int, **asked: Any) -> Filters:
    return Filters(
        top_k=np.full(rows, asked.get("top_k", 0)),
        top_p=np.full(rows, asked.get("top_p", 1.0)),
        min_p=np.full(rows, asked.get("min_p", 0.0)),
    )


def keys(count: int) -> np.ndarray:
    """The streams of ``count`` positions of one request."""
    return stream_keys(np.full(count, 7), np.zeros(count, dtype=np.int64), np.arange(count), Purpose.TOKEN)


def histogram(probabilities: list[float], **asked: Any) -> np.ndarray:
    logits = torch.tensor(probabilities).log().repeat(MANY, 1)
    token_ids, _ = draw(logits, filters(MANY, **asked), keys(MANY))
    return np.bincount(token_ids.numpy(), minlength=len(probabilities)) / MANY


def wide_logits(rows: int) -> torch.Tensor:
    """A vocabulary of 3 windows whose mass is spread wider than one."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(rows, 3 * NUCLEUS_WINDOW, generator=generator) * 0.5


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_k": 1}, [0, 1, 0, 0]),
        ({"top_k": 2}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_k": 99}, [0.1, 0.4, 0.2, 0.3]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.41}, [0, 4 / 7, 0, 3 / 7]),
        ({"top_p": 0.75}, [0, 4 / 9, 2 / 9, 3 / 9]),
        ({"top_p": 0.999}, [0.1, 0.4, 0.2, 0.3]),
        ({"min_p": 0.6}, [0, 4 / 7, 0, 3 / 7]),
        ({"min_p": 1.0}, [0, 1, 0, 0]),
        # top_p is a share of what top_k left: 0.4 of 0.9, and of what min_p left: 0.4 of 0.7.
        ({"top_k": 3, "top_p": 0.44}, [0, 1, 0, 0]),
        ({"min_p": 0.6, "top_p": 0.5}, [0, 1, 0, 0]),
    ],
)
def test_each_filter_leaves_the_right_distribution(asked: dict[str, float], expected: list[float]) -> None:
    observed = histogram([0.1, 0.4, 0.2, 0.3], **asked)
    assert [share == 0 for share in observed] == [share == 0 for share in expected]
    np.testing.assert_allclose(observed, expected, atol=FIVE_SIGMA)


def test_top_k_keeps_exactly_k_of_equal_candidates() -> None:
    observed = histogram([0.25] * 4, top_k=2)
    assert observed[2:].tolist() == [0, 0]
    np.testing.assert_allclose(observed, [0.5, 0.5, 0, 0], atol=FIVE_SIGMA)


def test_an_id_of_weight_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, -200.0, -torch.inf]]).repeat(1000, 1)
    for asked in ({}, {"top_p": 0.99}, {"top_k": 4}):
        assert set(draw(logits.clone(), filters(1000, **asked), keys(1000))[0].tolist()) == {1}


def test_rounding_moves_almost_no_draw() -> None:
    """Two batch shapes give logits that differ in their last bits; the tokens must not."""
    logits = wide_logits(2_000)
    noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(5)) * 1e-5
    for asked in ({}, {"top_p": 0.9}, {"top_k": 1000}):
        which = filters(2_000, **asked)
        one, other = (draw(each, which, keys(2_000))[0] for each in (logits.clone(), logits + noise))
        assert (one != other).sum() <= 2


def test_a_filter_only_takes_runners_out() -> None:
    logits = wide_logits(500)
    free, cut = (draw(logits.clone(), filters(500, **asked), keys(500))[0] for asked in ({}, {"top_p": 0.9}))
    assert 0.8 < (free == cut).float().mean() < 1.0


def test_a_nucleus_wider_than_the_window_is_found_by_a_full_sort() -> None:
    logits = wide_logits(1)
    probabilities = torch.softmax(logits[0].double(), 0)
    ordered = probabilities.sort(descending=True)
    size = int((ordered.values.cumsum(0) < 0.9).sum()) + 1
    assert size > NUCLEUS_WINDOW
    _, kept = draw(logits.clone(), filters(1, top_p=0.9), keys(1), keep_logits=True)
    assert kept is not None
    assert torch.isfinite(kept[0]).nonzero()[:, 0].tolist() == sorted(ordered.indices[:size].tolist())


@pytest.mark.parametrize("mates", [{}, {"top_k": 3 * NUCLEUS_WINDOW}, {"top_k": 2}, {"top_p": 0.95}, {"min_p": 0.01}])
@pytest.mark.parametrize("asked", [{}, {"top_p": 0.9}, {"top_p": 0.05}, {"top_k": 1500, "top_p": 0.5}])
def test_a_draw_does_not_depend_on_batch_mates(asked: dict[str, float], mates: dict[str, float]) -> None:
    rows = 12
    logits, numbers = wide_logits(rows), keys(rows)
    own, other = filters(rows, **asked), filters(rows, **mates)
    is_mate = np.arange(rows) % 2 == 1
    mixed = Filters(*(np.where(is_mate, getattr(other, f), getattr(own, f)) for f in ("top_k", "top_p", "min_p")))
    together = draw(logits.clone(), mixed, numbers)[0]
    for row in range(rows):
        one = slice(row, row + 1)
        assert draw(logits[one].clone(), mixed.rows(np.array([row])), numbers[one])[0] == together[row]


def test_kept_logits_show_what_was_filtered_out() -> None:
    logits = torch.tensor([[1.0, 4.0, 2.0, 3.0], [1.0, 4.0, 2.0, 3.0]])
    which = Filters(np.array([2, 0]), np.array([1.0, 1.0]), np.array([0.0, 0.2]))
    _, kept = draw(logits, which, keys(2), keep_logits=True)
    assert kept is not None
    assert kept.tolist() == [[-torch.inf, 4.0, -torch.inf, 3.0], [-torch.inf, 4.0, -torch.inf, 3.0]]
