"""Attention by AMX's tiles: as near as bfloat16 weights allow, and of the same bits whatever rows are beside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.device.attention.cpu import CpuAttention
from octavo.device.ops.native.context import open_native
from octavo.device.ops.paged_attention import AttentionOptions
from tests.device.attention.batches import attend, in_chunks, part_of
from tests.device.ops.naive import PagedBatch

native = pytest.importorskip("octavo._native", reason="built without the native module")
if "amx" not in native.available_isas():
    pytest.skip("neither AMX nor a build that emulates it", allow_module_level=True)

FEATURES: tuple[dict[str, Any], ...] = ({}, {"sliding_window": 40}, {"chunk_size": 50}, {"softcap": 5.0})
HEAD_SIZES = [16, 64, 80, 96, 128, 256]
"""With and without a half of a tile of entries."""

LENGTH = 140
"""More than two tiles of keys."""


@pytest.fixture(autouse=True)
def _highest_instruction_set() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.set_isa("auto")


def amx(num_threads: int = 2) -> CpuAttention:
    return CpuAttention(open_native(num_threads, "amx"))


def tile_calls() -> int:
    return int(native.kernel_counts().get("paged_attention_tiles.amx", 0))


def assert_near(got: Tensor, batch: PagedBatch, options: AttentionOptions, sinks: Tensor | None = None) -> None:
    """Weights and their sum are each off by half a unit of bfloat16, 2^-9, and by 1e-4; the result by another half."""
    expected = batch.expected(options, sinks)
    batch.values = [value.abs() for value in batch.values]
    bound = (2**-8 + 3e-4) * batch.expected(options, sinks) + 2**-9 * expected.abs() + 1e-6
    assert ((got.double() - expected).abs() <= bound).all()


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_results_are_as_near_as_rounded_weights_allow(head_size: int) -> None:
    for num_heads, features in zip((2, 6, 14, 6), FEATURES, strict=True):
        batch = PagedBatch([(0, 19), (70, 1), (130, 5)], num_heads, 2, head_size, torch.bfloat16)
        options, sinks, before = batch.options(**features), torch.linspace(-2, 2, num_heads), tile_calls()
        got = attend(amx(), batch, options, sinks)
        assert tile_calls() == before + 1
        assert_near(got, batch, options, sinks)


def test_equal_values_have_themselves_for_a_mean() -> None:
    """The weights that divide are those that were multiplied by, so that their rounding does not bias."""
    batch = PagedBatch([(0, 90), (700, 1)], 6, 2, 64, torch.bfloat16)
    batch.kv_cache[1] = batch.kv_cache[1].nan_to_num() * 0 + 1.7109375
    assert torch.equal(attend(amx(), batch, batch.options()), torch.full_like(batch.query, 1.7109375))


@pytest.mark.parametrize("features", FEATURES, ids=str)
@pytest.mark.parametrize(
    ("num_heads", "sizes"), [(1, (1, 2, 3, 15, 16, 17, 33, 96)), (3, (1, 5, 11, 32)), (7, (1, 2, 13))]
)
def test_no_number_of_rows_changes_a_bit(num_heads: int, sizes: tuple[int, ...], features: dict[str, Any]) -> None:
    for head_size in (64, 80, 128, 256):
        batch = PagedBatch([(0, LENGTH)], num_heads, 1, head_size, torch.bfloat16, 32)
        options, sinks, before = batch.options(**features), torch.linspace(-1, 1, num_heads), tile_calls()
        whole = attend(amx(), batch, options, sinks)
        for size in sizes:
            assert torch.equal(in_chunks(amx(1), batch, 0, LENGTH, size, options, sinks), whole)
        assert tile_calls() - before == 1 + sum(-(-LENGTH // size) for size in sizes)


def test_neither_batch_nor_splits_nor_blocks_change_a_bit() -> None:
    """Of a long context, whose keys two threads share, alone and among prompts and streams."""
    results = []
    for block_size in (16, 32, 64):
        batch = PagedBatch([(0, 70), (1500, 1), (1100, 9), (0, 1)], 9, 3, 64, torch.bfloat16, block_size)
        alone = PagedBatch([(1500, 1)], 9, 3, 64, torch.bfloat16, block_size)
        alone.kv_cache, alone.block_table, alone.query = batch.kv_cache, batch.block_table[1:2], batch.query[70:71]
        together = [attend(amx(threads), batch, batch.options()) for threads in (1, 2, 8)]
        assert torch.equal(together[0], together[1]) and torch.equal(together[0], together[2])
        for threads in (1, 2):
            assert torch.equal(attend(amx(threads), alone, alone.options()), together[0][70:71])
        results.append(together[0])
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_a_value_that_is_not_finite_reaches_the_rows_that_see_it_alone(features: dict[str, Any], number: float) -> None:
    batch = PagedBatch([(0, LENGTH)], 3, 1, 80, torch.bfloat16)
    options, at = batch.options(**features), 75
    clean = attend(amx(), batch, options)
    batch.kv_cache[1, batch.block_table[0, at // 16], at % 16] = number
    whole = attend(amx(), batch, options)
    sees = [not torch.equal(clean[row], whole[row]) for row in range(LENGTH)]
    last = {"sliding_window": at + 40, "chunk_size": 100}.get(next(iter(features), ""), LENGTH)
    assert sees == [at <= row < last for row in range(LENGTH)]
    assert not whole[at:last].isfinite().any()
    for size in (1, 7, 33):
        assert torch.equal(in_chunks(amx(), batch, 0, LENGTH, size, options).nan_to_num(), whole.nan_to_num())


def test_other_types_and_heads_of_other_sizes_are_computed_as_everywhere() -> None:
    for head_size, dtype, cache_dtype in (
        (40, torch.bfloat16, torch.bfloat16),
        (64, torch.float32, torch.bfloat16),
        (64, torch.bfloat16, torch.float32),
        (64, torch.bfloat16, torch.int8),
    ):
        batch = PagedBatch([(0, 20), (100, 1)], 6, 2, head_size, dtype, cache_dtype=cache_dtype)
        before = tile_calls()
        got = attend(amx(), batch, batch.options())
        assert torch.equal(got, attend(CpuAttention(open_native(2, "generic")), batch, batch.options()))
        assert tile_calls() == before


def test_a_decode_step_is_a_row_of_the_prompt() -> None:
    batch = PagedBatch([(0, LENGTH)], 6, 2, 64, torch.bfloat16)
    whole = attend(amx(), batch, batch.options())
    last = part_of(batch, 0, LENGTH - 1, LENGTH)
    assert torch.equal(attend(amx(), last, last.options())[0], whole[-1])
