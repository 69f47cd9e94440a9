"""The transform of int8 keys: orthogonal, and the end of outliers."""

from __future__ import annotations

import pytest
import torch

from octavo.device.ops.hadamard import hadamard, hadamard_size
from octavo.device.ops.qkv_rope_write import quantize


def test_twice_is_the_number_of_entries_times_what_was_there() -> None:
    heads = torch.randint(-50, 50, (3, 2, 96)).float()
    assert hadamard_size(96) == 32
    assert torch.equal(hadamard(hadamard(heads)), 32 * heads)


def test_it_is_sylvesters_matrix() -> None:
    matrix = torch.ones(1, 1)
    for _ in range(4):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    assert torch.equal(hadamard(torch.eye(16)), matrix)


@pytest.mark.parametrize("head_size", [64, 80, 128])
def test_scores_with_keys_of_a_few_large_entries_lose_much_less(head_size: int) -> None:
    numbers = torch.Generator().manual_seed(0)
    query, keys = (torch.randn(n, head_size, generator=numbers) for n in (4, 50))
    keys[:, 3] += 60

    def lost(query: torch.Tensor, keys: torch.Tensor) -> float:
        whole, scale = quantize(keys)
        return (query @ (whole * scale - keys).T).square().mean().sqrt().item()

    spread = lost(hadamard(query) / hadamard_size(head_size), hadamard(keys))
    assert spread < 0.4 * lost(query, keys)
