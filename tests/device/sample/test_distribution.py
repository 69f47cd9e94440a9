from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from octavo.device.sample.distribution import NUCLEUS_WINDOW, Filters, draw

MANY = 20_000


def filters(rows: int, **asked: Any) -> Filters:
    return Filters(
        top_k=np.full(rows, asked.get("top_k", 0)),
        top_p=np.full(rows, asked.get("top_p", 1.0)),
        min_p=np.full(rows, asked.get("min_p", 0.0)),
    )


def uniforms(count: int) -> np.ndarray:
    """Evenly spread numbers, so that a histogram is the distribution up to 1 / count."""
    return (np.arange(count) + 0.5) / count


def histogram(probabilities: list[float], **asked: Any) -> np.ndarray:
    logits = torch.tensor(probabilities).log().repeat(MANY, 1)
    token_ids, _ = draw(logits, filters(MANY, **asked), uniforms(MANY))
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
    np.testing.assert_allclose(histogram([0.1, 0.4, 0.2, 0.3], **asked), expected, atol=2 / MANY)


def test_top_k_keeps_exactly_k_of_equal_candidates() -> None:
    np.testing.assert_allclose(histogram([0.25] * 4, top_k=2), [0.5, 0.5, 0, 0], atol=2 / MANY)


def test_an_id_of_weight_zero_is_never_drawn() -> None:
    logits = torch.tensor([[-torch.inf, 0.0, -torch.inf, 0.0, -torch.inf]]).repeat(3, 1)
    extremes = np.array([0.0, 0.5, 1.0 - 2.0**-53])
    assert draw(logits.clone(), filters(3), extremes)[0].tolist() == [1, 3, 3]
    assert draw(logits.clone(), filters(3, top_p=0.99), extremes)[0].tolist() == [1, 3, 3]


def test_a_nucleus_wider_than_the_window_is_found_by_a_full_sort() -> None:
    logits = wide_logits(1)
    probabilities = torch.softmax(logits[0].double(), 0)
    ordered = probabilities.sort(descending=True)
    size = int((ordered.values.cumsum(0) < 0.9).sum()) + 1
    assert size > NUCLEUS_WINDOW
    _, kept = draw(logits.clone(), filters(1, top_p=0.9), np.array([0.3]), keep_logits=True)
    assert kept is not None
    assert torch.isfinite(kept[0]).nonzero()[:, 0].tolist() == sorted(ordered.indices[:size].tolist())


@pytest.mark.parametrize("mates", [{}, {"top_k": 3 * NUCLEUS_WINDOW}, {"top_k": 2}, {"top_p": 0.95}, {"min_p": 0.01}])
@pytest.mark.parametrize("asked", [{}, {"top_p": 0.9}, {"top_p": 0.05}, {"top_k": 1500, "top_p": 0.5}])
def test_a_draw_does_not_depend_on_batch_mates(asked: dict[str, float], mates: dict[str, float]) -> None:
    rows = 12
    logits, numbers = wide_logits(rows), uniforms(rows)
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
    _, kept = draw(logits, which, uniforms(2), keep_logits=True)
    assert kept is not None
    assert kept.tolist() == [[-torch.inf, 4.0, -torch.inf, 3.0], [-torch.inf, 4.0, -torch.inf, 3.0]]
