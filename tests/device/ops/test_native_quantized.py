"""Weights of a few bits: exact in their integers, and bitwise the same for any rows, threads and instructions."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from octavo.device.loader.gguf_dequant import BLOCK_SIZES, Bytes, dequantize_rows
from octavo.device.ops.native.context import open_native
from octavo.device.ops.native.linear import PackedWeight
from octavo.device.ops.native.quantized import (
    NATIVE_FORMATS,
    QUANTIZED_FORMATS,
    StoredRows,
    float_rows,
    pack_quantized,
)
from tests.instruction_sets import counter_of

_native = pytest.importorskip("octavo._native", reason="built without the native module")

ISAS = _native.available_isas()
DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 2, 3, 4, 5, 7, 33, 64)
SHAPES = ((256, 1), (256, 17), (768, 33), (1536, 100))  # in_features, out_features
# Offsets of float16 numbers in a block.
HALVES = {"Q4_1": (0, 2), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
GROUP = 32


@pytest.fixture(autouse=True)
def _highest_instruction_set_again() -> None:
    torch.set_num_threads(1)
    _native.set_isa("auto")


def random_blocks(name: str, num_rows: int, columns: int, seed: int = 0) -> Bytes:
    """Random bits, but for scales near 0.01."""
    block_bytes, block_size = BLOCK_SIZES[name]
    rng, num_blocks = np.random.default_rng(seed), columns // block_size
    rows = rng.integers(0, 256, (num_rows, num_blocks, block_bytes), dtype=np.uint8)
    for offset in HALVES.get(name, (0,)):
        scales = (rng.standard_normal((num_rows, num_blocks, 1)) * 0.01).astype(np.float16)
        rows[..., offset : offset + 2] = scales.view(np.uint8)
    return rows.reshape(num_rows, -1)


def dense(name: str, rows: Bytes, columns: int) -> Tensor:
    out = torch.empty(len(rows), columns)
    dequantize_rows(name, rows, out)
    return out


def inputs(num_rows: int, columns: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers, some of them large, and groups of zeros."""
    x = torch.randn(num_rows, columns, generator=torch.Generator().manual_seed(3))
    x[:, ::37] *= 30
    x[:, 32:64] = 0
    return x.to(dtype)


def quantized_inputs(x: Tensor) -> Tensor:
    """What a row is to the kernels, in float64: whole numbers up to 127 times a scale for each 32."""
    padded = torch.nn.functional.pad(x.float(), (0, -x.shape[1] % GROUP)).view(len(x), -1, GROUP)
    largest = padded.abs().amax(-1, keepdim=True)
    whole = (padded * torch.where(largest > 0, torch.tensor(127.0) / largest, 0)).round()
    return (whole.double() * (largest / 127).double()).flatten(1)[:, : x.shape[1]]


def assert_is_product(got: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """Integers are exact, so all that is lost are the roundings of one float32 number per group."""
    seen, wide = quantized_inputs(x), weight.double()
    exact = seen @ wide.T + (0 if bias is None else bias.double())
    assert ((got.double() - exact).abs() <= 1e-6 * (seen.abs() @ wide.abs().T + exact.abs())).all()


def pack(
    name: str,
    rows: Bytes,
    columns: int,
    *,
    isa: str = "auto",
    bias: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> PackedWeight:
    return pack_quantized(open_native(2, isa), [(name, StoredRows(name, rows))], columns, bias, dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NATIVE_FORMATS)
def test_it_is_the_dequantised_weight_times_the_quantised_rows(name: str, isa: str, shape: tuple[int, int]) -> None:
    columns, out_features = shape
    rows = random_blocks(name, out_features, columns)
    bias = torch.randn(out_features, generator=torch.Generator().manual_seed(4))
    for dtype in DTYPES:
        x = inputs(7, columns, dtype)
        packed = pack(name, rows, columns, isa=isa, bias=bias, dtype=dtype)
        before = Counter(_native.kernel_counts())
        assert_is_product(packed.project(x, torch.float32), x, dense(name, rows, columns), bias)
        assert Counter(_native.kernel_counts()) - before == {counter_of(f"linear_{name.lower()}", isa): 1}
        assert torch.equal(packed.project(x), packed.project(x, torch.float32).to(dtype))
    assert packed.project(x[:0]).shape == (0, out_features)


@pytest.mark.parametrize("name", NATIVE_FORMATS)
def test_every_bit_of_the_file_is_kept_in_little_more_memory(name: str) -> None:
    rows = random_blocks(name, 300, 1024)
    packed, ids = pack(name, rows, 1024), torch.tensor([299, 0, 5, 17, 5])
    assert torch.equal(packed.rows(ids), dense(name, rows, 1024)[ids])
    assert packed.nbytes <= 1.05 * rows.nbytes * 304 / 300  # whole panels of 16 rows
    half = pack(name, rows, 1024, dtype=torch.bfloat16)
    assert torch.equal(half.rows(ids), dense(name, rows, 1024)[ids].bfloat16())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*NATIVE_FORMATS, "int8"])
def test_a_row_is_bitwise_the_same_among_any_rows_and_with_any_threads(name: str, dtype: torch.dtype) -> None:
    x = inputs(max(ROWS), 768, dtype)
    source = float_rows(inputs(100, 768)) if name == "int8" else StoredRows(name, random_blocks(name, 100, 768))
    alone = None
    for threads in (1, 2, 8):
        packed = pack_quantized(open_native(threads), [(name, source)], 768, None, dtype)
        if alone is None:
            alone = torch.cat([packed.project(row) for row in x.split(1)])
        for num_rows in ROWS:
            for first in {0, len(x) - num_rows}:
                assert torch.equal(packed.project(x[first : first + num_rows]), alone[first : first + num_rows])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [*NATIVE_FORMATS, "int8"])
def test_no_number_of_rows_changes_a_bit_of_one(name: str, isa: str) -> None:
    """However rows are shared out among the tiles of a kernel, over more groups than are unpacked at once."""
    x = inputs(70, 768)
    source = float_rows(inputs(17, 768)) if name == "int8" else StoredRows(name, random_blocks(name, 17, 768))
    packed = pack_quantized(open_native(1, isa), [(name, source)], 768, None, x.dtype)
    alone = torch.cat([packed.project(row) for row in x.split(1)])
    for num_rows in range(2, len(x) + 1):
        assert torch.equal(packed.project(x[:num_rows]), alone[:num_rows]), num_rows


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", [*NATIVE_FORMATS, "int8"])
def test_the_best_of_a_row_is_that_of_its_results(name: str, isa: str) -> None:
    """In tasks of whole panels, whose last one is not, and over more rows than a task takes."""
    x = inputs(70, 256)
    source = float_rows(inputs(1003, 256)) if name == "int8" else StoredRows(name, random_blocks(name, 1003, 256))
    x[3, 200], x[5] = float("nan"), 0  # a row without numbers, and one of ties
    for threads, rows in ((1, 1), (2, 7), (8, 70)):
        packed = pack_quantized(open_native(threads, isa), [(name, source)], 256, None, x.dtype)
        assert_is_best(packed, x[:rows])


def assert_is_best(packed: PackedWeight, x: Tensor) -> None:
    before = Counter(_native.kernel_counts())
    values, ids = packed.best(x, None).unbind(1)
    assert sum(count for name, count in (Counter(_native.kernel_counts()) - before).items() if "best" in name) == 1
    results = packed.project(x, torch.float32)
    finite = results.isfinite().all(1)
    assert torch.equal(values.isfinite(), finite)
    assert values[finite].tolist() == results[finite].amax(1).tolist()
    assert ids[finite].tolist() == results[finite].numpy().argmax(1).tolist()


@pytest.mark.parametrize("out_features", [576, 960, 1000, 3072])
def test_panels_are_shared_out_evenly_among_any_threads_and_none_is_left_out(out_features: int) -> None:
    source, x = float_rows(inputs(out_features, 576)), inputs(65, 576)
    stack = [("Q4_1", source), ("Q8_0", float_rows(inputs(40, 576)))]
    results = [pack_quantized(open_native(n), stack, 576, None, x.dtype).project(x) for n in (1, 2, 3, 8, 16)]
    assert all(torch.equal(results[0], result) for result in results)
    seen = quantized_inputs(x) @ inputs(out_features, 576).double().T
    assert torch.nn.functional.cosine_similarity(results[0][:, :out_features].double(), seen).min() > 0.99


@pytest.mark.parametrize("name", [*NATIVE_FORMATS, "int8"])
def test_every_instruction_set_gives_the_same_bits(name: str) -> None:
    x = inputs(9, 512)
    source = float_rows(inputs(40, 512)) if name == "int8" else StoredRows(name, random_blocks(name, 40, 512))
    results = [pack_quantized(open_native(1, isa), [(name, source)], 512, None, x.dtype).project(x) for isa in ISAS]
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NATIVE_FORMATS)
def test_the_largest_numbers_do_not_overflow(name: str, isa: str) -> None:
    """All bits of the weights set, and all clear; all activations at either end."""
    x = torch.ones(4, 512)
    x[1] = -1
    x[2, ::2] = -1
    x[3, ::4] = -1
    for byte in (0xFF, 0x00, 0x80, 0x7F):
        rows = random_blocks(name, 32, 512)
        scales = {offset + i for offset in HALVES.get(name, (0,)) for i in (0, 1)}
        blocks = rows.reshape(-1, BLOCK_SIZES[name][0])
        for column in set(range(blocks.shape[1])) - scales:
            blocks[:, column] = byte
        assert_is_product(pack(name, rows, 512, isa=isa).project(x), x, dense(name, rows, 512))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", [*NATIVE_FORMATS, "int8"])
def test_what_is_not_finite_stays_in_its_row_and_is_seen(name: str, dtype: torch.dtype, isa: str) -> None:
    x = inputs(8, 256, dtype)
    source = float_rows(inputs(40, 256)) if name == "int8" else StoredRows(name, random_blocks(name, 40, 256))
    packed = pack_quantized(open_native(2, isa), [(name, source)], 256, None, dtype)
    expected = packed.project(x)
    x[3, 200], x[5, 0], x[6, 31] = float("nan"), float("inf"), float("-inf")
    got, finite = packed.project(x), [0, 1, 2, 4, 7]
    assert torch.equal(got[finite], expected[finite])
    assert not got[[3, 5, 6]].isfinite().any()


def test_a_stack_of_formats_is_each_of_them_below_the_other() -> None:
    """As a Q4_K_M file has them in one layer; the first in another order of its rows."""
    native, x = open_native(2), inputs(5, 512)
    parts = {name: random_blocks(name, count, 512) for name, count in (("Q4_K", 48), ("Q6_K", 20), ("Q8_0", 7))}
    bias = torch.randn(75, generator=torch.Generator().manual_seed(5))
    order = np.random.default_rng(6).permutation(48)
    stack = [(name, StoredRows(name, rows, order if name == "Q4_K" else None)) for name, rows in parts.items()]
    packed = pack_quantized(native, stack, 512, bias, x.dtype)
    parts["Q4_K"] = parts["Q4_K"][order]
    alone = [pack(name, rows, 512).project(x) for name, rows in parts.items()]
    assert torch.equal(packed.project(x), torch.cat(alone, dim=1) + bias)
    whole = torch.cat([dense(name, rows, 512) for name, rows in parts.items()])
    ids = torch.tensor([74, 0, 47, 48, 67, 68])
    assert torch.equal(packed.rows(ids), whole[ids])


@pytest.mark.parametrize("columns", [32, 200, 577])
@pytest.mark.parametrize("name", QUANTIZED_FORMATS)
def test_numbers_are_quantised_to_the_nearest(name: str, columns: int) -> None:
    weight = torch.randn(33, columns, generator=torch.Generator().manual_seed(7)) * 0.02
    weight[4] = 0
    packed = pack_quantized(open_native(2), [(name, float_rows(weight))], columns, None, torch.float32)
    held, x = packed.rows(torch.arange(33)), inputs(3, columns)
    largest = weight.abs().amax(1, keepdim=True)
    assert ((held - weight).abs() <= largest * (0.51 / 127 if name != "Q4_1" else 0.1)).all()
    assert (held[4] == 0).all()
    assert_is_product(packed.project(x), x, held)
    half = weight.bfloat16()
    stored = StoredRows("BF16", half.view(torch.uint8).numpy())
    from_half = pack_quantized(open_native(2), [(name, stored)], columns, None, torch.float32)
    from_float = pack_quantized(open_native(2), [(name, float_rows(half.float()))], columns, None, torch.float32)
    assert torch.equal(from_half.project(x), from_float.project(x))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("stored", ["Q4_0", "Q4_1"])
def test_numbers_of_a_four_bit_file_are_quantised_to_themselves(stored: str, isa: str) -> None:
    """Each group spans other steps of its grid than the one of 16 levels that is tried first."""
    rows = random_blocks(stored, 40, 512)
    exact = dense(stored, rows, 512)
    exact[:20] *= 0.5
    packed = pack_quantized(open_native(2, isa), [("Q4_1", float_rows(exact))], 512, None, torch.float32)
    assert torch.allclose(packed.rows(torch.arange(40)), exact, rtol=0, atol=1e-3 * exact.abs().max().item())


def test_four_bits_miss_less_than_sixteen_even_steps_from_least_to_greatest() -> None:
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(9)) * 0.02
    packed = pack_quantized(open_native(2), [("Q4_1", float_rows(weight))], 1024, None, torch.float32)
    groups = weight.view(-1, GROUP)
    least, greatest = groups.amin(1, keepdim=True), groups.amax(1, keepdim=True)
    even = least + ((groups - least) / (greatest - least) * 15).round() * (greatest - least) / 15
    missed = (packed.rows(torch.arange(64)) - weight).square().sum()
    assert missed < 0.85 * (even - groups).square().sum()


@pytest.mark.parametrize("name", QUANTIZED_FORMATS)
def test_every_instruction_set_quantises_to_the_same_bits(name: str) -> None:
    source = float_rows(inputs(40, 500) * 0.01)
    held = [pack_quantized(open_native(1, isa), [(name, source)], 500, None, torch.float32) for isa in ISAS]
    assert all(torch.equal(packed.rows(torch.arange(40)), held[0].rows(torch.arange(40))) for packed in held)


@pytest.mark.parametrize("name", QUANTIZED_FORMATS)
def test_a_weight_that_is_not_finite_is_seen(name: str) -> None:
    weight, x = torch.randn(3, 64), torch.ones(1, 64)
    weight[1, 40], weight[2, 3] = float("nan"), float("inf")
    packed = pack_quantized(open_native(1), [(name, float_rows(weight))], 64, None, torch.float32)
    assert packed.project(x).isfinite().tolist() == [[True, False, False]]


def test_what_cannot_be_packed_is_refused() -> None:
    rows, native = random_blocks("Q8_0", 4, 64), open_native(1)
    with pytest.raises(ValueError, match="no kernels for weights as Q3_K"):
        pack_quantized(native, [("Q3_K", StoredRows("Q3_K", rows))], 64, None, torch.float32)
    with pytest.raises(ValueError, match="rows of 48 are not whole blocks of Q8_0"):
        pack_quantized(native, [("Q8_0", StoredRows("Q8_0", rows))], 48, None, torch.float32)
    with pytest.raises(ValueError, match="quantised to Q8_0, Q4_1 and int8 only"):
        pack_quantized(native, [("Q4_K", StoredRows("Q8_0", random_blocks("Q8_0", 4, 256)))], 256, None, torch.float32)
