"""The packed linear: right, and bitwise the same for every number of rows, of threads, and every instruction set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from octavo.device.ops.kernels import load_kernels
from octavo.device.ops.native.context import NativeContext, open_native
from octavo.device.ops.native.linear import pack_dense

_native = pytest.importorskip("octavo._native", reason="built without the native module")

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 16, 33, 128)
# (in_features, out_features): tails in both, and a head's many columns.
SHAPES = ((1, 1), (7, 5), (576, 17), (33, 960), (64, 49155))


@pytest.fixture
def native() -> Iterator[NativeContext]:
    yield open_native(2)
    _native.set_isa("auto")


def random(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(num_rows: int, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    k, n = shape
    return (random(num_rows, k, dtype=dtype, seed=0), random(n, k, dtype=dtype, seed=1), random(n, dtype=dtype, seed=2))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_product_and_the_bias_rounded_once(
    native: NativeContext, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    x, weight, bias = operands(9, shape, dtype)
    packed, exact = pack_dense(native, weight, bias), x.double() @ weight.double().T + bias.double()
    torch.testing.assert_close(packed.project(x, torch.float32).double(), exact, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(packed.project(x), packed.project(x, torch.float32).to(dtype), rtol=0, atol=0)
    without = pack_dense(native, weight).project(x, torch.float32)
    torch.testing.assert_close(without + bias.float(), packed.project(x, torch.float32), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_row_is_bitwise_the_same_among_any_number_of_rows(
    native: NativeContext, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight, bias = operands(max(ROWS), shape, dtype)
    packed = pack_dense(native, weight, bias)
    alone = torch.cat([packed.project(row) for row in x.split(1)])
    for num_rows in ROWS:
        for first in {0, (len(x) - num_rows) // 2, len(x) - num_rows}:
            assert torch.equal(packed.project(x[first : first + num_rows]), alone[first : first + num_rows])


@pytest.mark.parametrize("num_threads", [1, 2, 3, 8, 16])
def test_any_number_of_threads_gives_the_same_bits(native: NativeContext, num_threads: int) -> None:
    x, weight, bias = operands(33, (577, 300), torch.float32)
    expected = pack_dense(native, weight, bias).project(x)
    others = pack_dense(open_native(num_threads), weight, bias)
    for _ in range(20):
        assert torch.equal(others.project(x), expected)
        assert torch.equal(others.project(x[:1]), expected[:1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("isa", _native.available_isas())
def test_every_instruction_set_gives_the_bits_of_one_chain_of_fused_multiply_adds(isa: str, dtype: torch.dtype) -> None:
    x, weight, _ = operands(7, (301, 20), dtype)
    kernels = load_kernels("native", num_threads=2, isa=isa)
    before = Counter(_native.kernel_counts())
    got = pack_dense(kernels.native, weight).project(x, torch.float32)
    ran = Counter(_native.kernel_counts()) - before
    assert ran == {f"linear_{str(dtype).removeprefix('torch.')}.{isa}": 1}
    assert torch.equal(got, chain_of_fused_multiply_adds(x, weight))


def chain_of_fused_multiply_adds(x: Tensor, weight: Tensor) -> Tensor:
    """float32 products are exact in float64, and so is a rounded sum's one rounding, but for ties that do not occur."""
    total = torch.zeros(len(x), len(weight))
    for column, factor in zip(x.T.double(), weight.T.double(), strict=True):
        total = (total.double() + column[:, None] * factor).float()
    return total


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("isa", _native.available_isas())
def test_what_is_not_finite_stays_in_its_row(isa: str, dtype: torch.dtype) -> None:
    native = open_native(2, isa)
    x, weight, _ = operands(8, (65, 40), dtype)
    packed = pack_dense(native, weight)
    expected = packed.project(x)
    x[3, 64], x[5, 0] = float("nan"), float("inf")
    got = packed.project(x)
    finite = [0, 1, 2, 4, 6, 7]
    assert torch.equal(got[finite], expected[finite])
    assert got[3].isnan().all()
    assert torch.equal(got[5], torch.copysign(torch.tensor(torch.inf), weight[:, 0].float()).to(dtype))
    _native.set_isa("auto")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_come_back_as_they_were(native: NativeContext, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = random(shape[1], shape[0], dtype=dtype, seed=1)
    ids = torch.tensor([0, shape[1] - 1, shape[1] // 2, 0])
    packed = pack_dense(native, weight)
    assert torch.equal(packed.rows(ids), weight[ids])
    with pytest.raises(IndexError):
        packed.rows(torch.tensor([shape[1]]))


def test_no_rows_are_no_results(native: NativeContext) -> None:
    packed = pack_dense(native, random(5, 7, dtype=torch.float32, seed=0))
    assert packed.project(torch.empty(0, 7)).shape == (0, 5)
    assert packed.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 7)


def test_types_a_matrix_does_not_take_are_refused(native: NativeContext) -> None:
    packed, rows = pack_dense(native, random(5, 7, dtype=torch.float32, seed=0)), torch.empty(1, 7)
    ids = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="its own type"):
        packed.matrix.project(rows.data_ptr(), True, rows.data_ptr(), True).run(native.pool, 1, 0)
    with pytest.raises(ValueError, match="its own type"):
        packed.matrix.unpack_rows(ids.data_ptr(), rows.data_ptr(), True).run(native.pool, 1, 0)


def test_rows_of_another_width_or_type_are_refused(native: NativeContext) -> None:
    packed = pack_dense(native, random(5, 7, dtype=torch.float32, seed=0))
    for rows in (torch.empty(2, 6), torch.empty(2, 7, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match="rows of 7"):
            packed.project(rows)
