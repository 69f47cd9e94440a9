"""The packed linear: right, and bitwise the same for every number of rows, of threads, and every instruction set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext, open_native
from octavo.device.ops.native.linear import lm_head, pack_dense

_native = pytest.importorskip("octavo._native", reason="built without the native module")

DTYPES = (torch.float32, torch.bfloat16)
ISAS = _native.available_isas()
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 14, 15, 16, 17, 33, 97, 128)
# (in_features, out_features): tails in both, more of k than a tile takes at once, and a head's many columns.
SHAPES = ((1, 1), (7, 5), (576, 17), (33, 960), (4099, 70), (64, 3003))


@pytest.fixture(params=ISAS)
def native(request: pytest.FixtureRequest) -> Iterator[NativeContext]:
    """In each instruction set that can run here."""
    yield open_native(2, request.param)
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
    torch.testing.assert_close(
        packed.project(x, torch.float32).double(), exact, rtol=1e-5, atol=max(1e-4, shape[0] * 1e-7)
    )
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
    others = pack_dense(open_native(num_threads, _native.active_isa()), weight, bias)
    for _ in range(20):
        assert torch.equal(others.project(x), expected)
        assert torch.equal(others.project(x[:1]), expected[:1])


@pytest.mark.parametrize("num_rows", [7, 35])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_sums_in_the_order_of_the_contract(
    native: NativeContext, dtype: torch.dtype, num_rows: int
) -> None:
    isa = _native.active_isa()
    order = IN_ORDER[isa if dtype == torch.bfloat16 else "generic"]
    if order is pairs_second_first and isa not in _native.emulated_isas():
        pytest.skip("how a CPU rounds within its bfloat16 instruction is its own affair")
    x, weight, _ = operands(num_rows, (301, 20), dtype)
    before = Counter(_native.kernel_counts())
    got = pack_dense(native, weight).project(x, torch.float32)
    assert Counter(_native.kernel_counts()) - before == {f"linear.{isa}": 1}
    assert torch.equal(got, order(x, weight))


def ascending(x: Tensor, weight: Tensor) -> Tensor:
    return chain(x, weight, range(x.shape[1]))


def pairs_second_first(x: Tensor, weight: Tensor) -> Tensor:
    k = x.shape[1]
    return chain(x, weight, [i for pair in range(0, k, 2) for i in (pair + 1, pair) if i < k])


def even_and_odd_of_tiles(x: Tensor, weight: Tensor) -> Tensor:
    total, k = torch.zeros(len(x), len(weight)), x.shape[1]
    for start in range(0, k, 32):
        end = min(start + 32, k)
        total = total + (chain(x, weight, range(start, end, 2)) + chain(x, weight, range(start + 1, end, 2)))
    return total


IN_ORDER = {
    "generic": ascending,
    "avx2": ascending,
    "avx512": pairs_second_first,
    "amx": even_and_odd_of_tiles,
}


def chain(x: Tensor, weight: Tensor, order: Iterable[int]) -> Tensor:
    """Fused multiply-adds over these places of k.

    float32 products are exact in float64, and so is a rounded sum's one rounding, but for ties that do not occur.
    """
    total = torch.zeros(len(x), len(weight))
    for i in order:
        total = (total.double() + x[:, i, None].double() * weight[:, i].double()).float()
    return total


@pytest.mark.parametrize("activation", ["silu", "gelu_pytorch_tanh"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("half", [1, 16, 50, 96])
def test_gates_computed_with_what_they_let_through_are_those_of_a_projection_and_an_activation(
    native: NativeContext, half: int, dtype: torch.dtype, activation: str
) -> None:
    x, weight, bias = operands(37, (65, 2 * half), dtype)
    gated, plain = pack_dense(native, weight, bias, gated=True), pack_dense(native, weight, bias)
    assert torch.equal(gated.project(x), plain.project(x))
    assert torch.equal(gated.rows(torch.arange(2 * half)), weight)
    before = Counter(_native.kernel_counts())
    together = gated.gate(x, activation)
    assert Counter(_native.kernel_counts()) - before == {f"linear_gated.{_native.active_isa()}": 1}
    assert torch.equal(together, plain.gate(x, activation))
    for num_rows in (1, 2, 7, 16):
        assert torch.equal(gated.gate(x[:num_rows], activation), together[:num_rows])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_best_of_a_row_is_that_of_its_results(
    native: NativeContext, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, weight, bias = operands(128, shape, dtype)
    weight[-1] = weight[0]  # a tie
    x[5, 0] = float("nan")
    packed = pack_dense(native, weight, bias * 0)
    for num_rows in (1, 6, 17, 128):
        for softcap in (None, 3.0):
            values, ids = packed.best(x[:num_rows], softcap).unbind(1)
            logits = lm_head(native)(x[:num_rows], packed, softcap)
            finite = logits.isfinite().all(1)
            assert torch.equal(values.isfinite(), finite)
            assert values[finite].tolist() == logits[finite].amax(1).tolist()
            assert ids[finite].tolist() == logits[finite].numpy().argmax(1).tolist()


def test_a_matrix_keeps_the_instruction_set_it_was_packed_for(native: NativeContext) -> None:
    isa = _native.active_isa()
    x, weight, bias = operands(3, (33, 40), torch.float32)
    packed = pack_dense(native, weight, bias)
    expected = packed.project(x)
    _native.set_isa("generic")
    before = Counter(_native.kernel_counts())
    assert torch.equal(packed.project(x), expected)
    assert Counter(_native.kernel_counts()) - before == {f"linear.{isa}": 1}


@pytest.mark.parametrize("num_rows", [8, 16, 45])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_not_finite_stays_in_its_row(native: NativeContext, dtype: torch.dtype, num_rows: int) -> None:
    x, weight, _ = operands(num_rows, (65, 40), dtype)
    packed = pack_dense(native, weight)
    expected = packed.project(x)
    x[3, 64], x[5, 0] = float("nan"), float("inf")
    got = packed.project(x)
    finite = [row for row in range(num_rows) if row not in (3, 5)]
    assert torch.equal(got[finite], expected[finite])
    assert got[3].isnan().all()
    assert torch.equal(got[5], torch.copysign(torch.tensor(torch.inf), weight[:, 0].float()).to(dtype))


@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("k", [1, 31, 33, 65])
def test_what_lies_around_the_rows_is_not_multiplied(native: NativeContext, k: int, num_rows: int) -> None:
    x, weight, _ = operands(num_rows, (k, 40), torch.bfloat16)
    packed = pack_dense(native, weight)
    among_others = torch.full((num_rows + 40, k), float("nan"), dtype=torch.bfloat16)
    among_others[20 : 20 + num_rows] = x
    assert torch.equal(packed.project(among_others[20 : 20 + num_rows]), packed.project(x))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_come_back_as_they_were(native: NativeContext, shape: tuple[int, int], dtype: torch.dtype) -> None:
    weight = random(shape[1], shape[0], dtype=dtype, seed=1)
    ids = torch.tensor([0, shape[1] - 1, shape[1] // 2, 0])
    packed = pack_dense(native, weight)
    assert torch.equal(packed.rows(ids), weight[ids])
    with pytest.raises(IndexError):
        packed.rows(torch.tensor([shape[1]]))


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no huge pages on this system")
def test_large_weights_lie_in_pages_that_may_be_huge() -> None:
    before = bytes_advised_huge()
    packed = pack_dense(open_native(1), torch.zeros(4096, 1024))
    assert packed.nbytes >= 16 << 20
    assert bytes_advised_huge() - before >= packed.nbytes


def bytes_advised_huge() -> int:
    """Of this process's mappings."""
    size = total = 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.startswith("Size:"):
            size = int(line.split()[1]) * 1024
        elif line.startswith("VmFlags:") and "hg" in line.split():
            total += size
    return total


def test_no_rows_are_no_results(native: NativeContext) -> None:
    packed = pack_dense(native, random(5, 7, dtype=torch.float32, seed=0))
    assert packed.project(torch.empty(0, 7)).shape == (0, 5)
    assert packed.rows(torch.empty(0, dtype=torch.int64)).shape == (0, 7)


def test_types_a_matrix_does_not_take_are_refused(native: NativeContext) -> None:
    packed, rows = pack_dense(native, random(5, 7, dtype=torch.float32, seed=0)), torch.empty(1, 7)
    ids = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(ValueError, match="its own type"):
        packed.matrix.project(rows.data_ptr(), True, False, rows.data_ptr(), True).run(native.pool, 1, 0)
    with pytest.raises(ValueError, match="its own type"):
        packed.matrix.project(rows.data_ptr(), False, True, rows.data_ptr(), False).run(native.pool, 1, 0)
    with pytest.raises(ValueError, match="its own type"):
        packed.matrix.unpack_rows(ids.data_ptr(), rows.data_ptr(), True).run(native.pool, 1, 0)


def test_rows_of_another_width_or_type_are_refused(native: NativeContext) -> None:
    packed = pack_dense(native, random(5, 7, dtype=torch.float32, seed=0))
    for rows in (torch.empty(2, 6), torch.empty(2, 7, dtype=torch.bfloat16)):
        with pytest.raises(TypeError, match="rows of 7"):
            packed.project(rows)
