"""Native attention of encoders: a text's rows are the same to the bit among any others, on any threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from octavo.device.ops.kernels import load_kernels
from tests.instruction_sets import counter_of

native = pytest.importorskip("octavo._native", reason="built without the native module")

LENGTHS = (1, 7, 8, 17, 230, 100, 1, 0, 33)
HEAD_SIZES = (8, 20, 32, 64, 100)
NUM_HEADS = 3
DTYPES = (torch.float32, torch.bfloat16)


@pytest.fixture(autouse=True)
def _highest_instruction_set() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.set_isa("auto")


def texts(head_size: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(head_size)
    return [torch.randn(length, 3 * NUM_HEADS * head_size, generator=generator).to(dtype) for length in LENGTHS]


def attend(given: list[Tensor], *, backend: str = "native", num_threads: int = 2, isa: str = "auto") -> list[Tensor]:
    lengths = [len(text) for text in given]
    bounds = torch.tensor([0, *lengths]).cumsum(0).int()
    attention = load_kernels(backend, num_threads, isa).encoder_attention
    return list(attention(torch.cat(given), bounds, NUM_HEADS, 0.3).split(lengths))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_texts_of_all_lengths_are_those_of_the_reference(head_size: int, dtype: torch.dtype) -> None:
    given = texts(head_size, dtype)
    tolerance = 2e-5 if dtype == torch.float32 else 2**-7
    for got, expected in zip(attend(given), attend(given, backend="reference"), strict=True):
        torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_neither_other_texts_nor_threads_nor_instruction_sets_change_a_text(head_size: int, dtype: torch.dtype) -> None:
    given = texts(head_size, dtype)
    together = attend(given)
    assert all(map(torch.equal, attend(given, num_threads=1), together))
    assert all(map(torch.equal, attend(given[::-1], num_threads=5), together[::-1]))
    for text, expected in zip(given, together, strict=True):
        assert torch.equal(attend([text])[0], expected)
    for isa in native.available_isas():
        counter = counter_of("encoder_attention", isa)
        before = native.kernel_counts().get(counter, 0)
        assert all(map(torch.equal, attend(given, isa=isa), together))
        assert native.kernel_counts()[counter] > before


def test_what_is_no_number_stays_in_its_text_and_head() -> None:
    given = texts(32, torch.float32)
    expected = attend(given)
    given[4][3, 2 * NUM_HEADS * 32] = float("nan")  # a value of the first head
    for place, (got, clean) in enumerate(zip(attend(given), expected, strict=True)):
        assert torch.equal(got[:, 32:], clean[:, 32:])
        assert bool(got[:, :32].isnan().any()) == (place == 4)


def test_rows_of_no_text_are_zero_and_no_rows_are_taken() -> None:
    attention = load_kernels("native", 2).encoder_attention
    padded = attention(torch.ones(5, 72), torch.tensor([0, 2], dtype=torch.int32), NUM_HEADS, 1.0)
    assert (padded[:2] == 1).all() and (padded[2:] == 0).all()
    assert attention(torch.ones(0, 72), torch.tensor([0], dtype=torch.int32), NUM_HEADS, 1.0).shape == (0, 24)
