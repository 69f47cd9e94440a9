"""Native attention does not move by a bit: not with batch, chunks, threads, blocks or instruction set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from octavo.device.attention.cpu import CpuAttention
from octavo.device.ops.native.context import open_native
from tests.device.attention.batches import attend, in_chunks, part_of
from tests.device.ops.naive import PagedBatch
from tests.instruction_sets import counter_of

native = pytest.importorskip("octavo._native", reason="built without the native module")

FEATURES: tuple[dict[str, Any], ...] = (
    {},
    {"sliding_window": 100},
    {"chunk_size": 90},
    {"softcap": 5.0},
)
LENGTH = 150
"""Tokens of the request under test: more than two tiles of keys."""

SHAPES = ((9, 3, 64), (7, 1, 80), (4, 1, 256))
"""(query heads, KV heads, head size): SmolLM2, an odd group with an odd size, Gemma 3."""


@pytest.fixture(autouse=True)
def _highest_instruction_set() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    native.set_isa("auto")


def backend(num_threads: int = 2, isa: str = "auto") -> CpuAttention:
    return CpuAttention(open_native(num_threads, isa))


def calls() -> int:
    return sum(count for name, count in native.kernel_counts().items() if name.startswith("paged_attention."))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_a_request_alone_is_bitwise_the_same_as_among_others_and_in_chunks(
    features: dict[str, Any], dtype: torch.dtype
) -> None:
    before = calls()
    for num_heads, num_kv_heads, head_size in SHAPES:
        mates = [(0, 3 + 7 * i) for i in range(15)]
        batch = PagedBatch([*mates[:9], (0, LENGTH), *mates[9:]], num_heads, num_kv_heads, head_size, dtype, 16)
        options = batch.options(**features)
        first_row = sum(new for _, new in mates[:9])
        together = attend(backend(), batch, options)[first_row : first_row + LENGTH]
        alone = attend(backend(), part_of(batch, 9, 0, LENGTH), options)
        assert torch.equal(alone, together)
        for size in (1, 7, 16):
            assert torch.equal(in_chunks(backend(), batch, 9, LENGTH, size, options), together)
    assert calls() - before >= len(SHAPES) * (2 + LENGTH)


@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_threads_and_block_sizes_change_no_bit(features: dict[str, Any]) -> None:
    lengths = [(0, 70), (200, 1), (1100, 1), (530, 9), (0, 1)]
    results = []
    for block_size in (16, 32, 64):
        batch = PagedBatch(lengths, 9, 3, 64, block_size=block_size)
        sinks = torch.linspace(-1, 1, 9)
        results += [attend(backend(n), batch, batch.options(**features), sinks) for n in (1, 2, 8)]
    for result in results[1:]:
        assert torch.equal(result, results[0])


def test_keys_read_by_several_threads_are_put_together_in_order() -> None:
    """One decoding request of a long context: its keys are split over threads, at fixed positions."""
    batch = PagedBatch([(1500, 1)], 4, 1, 64, block_size=32)
    sinks, runs = torch.linspace(-1, 1, 4), counter_of("paged_attention_split", native.active_isa())
    for features in ({}, {"sliding_window": 700}, {"sliding_window": 3}, {"softcap": 2.0}):
        options = batch.options(**features)
        alone = attend(backend(num_threads=1), batch, options, sinks)
        before = native.kernel_counts().get(runs, 0)
        assert torch.equal(attend(backend(num_threads=2), batch, options, sinks), alone)
        if features != {"sliding_window": 3}:
            assert native.kernel_counts()[runs] == before + 1
        torch.testing.assert_close(alone.double(), batch.expected(options, sinks), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("isa", [isa for isa in native.available_isas() if isa != "generic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_instruction_sets_agree_to_the_bit(dtype: torch.dtype, isa: str) -> None:
    """Heads of 40 entries fit into no tiles, whose results are their own (test_cpu_tiles)."""
    batch = PagedBatch([(0, 75), (600, 1), (62, 5)], 6, 2, 40, dtype=dtype, block_size=16)
    sinks = torch.linspace(-1, 1, 6)
    for features in FEATURES:
        options = batch.options(**features)
        generic = attend(backend(isa="generic"), batch, options, sinks)
        runs = counter_of("paged_attention", isa)
        before = native.kernel_counts().get(runs, 0)
        assert torch.equal(attend(backend(isa=isa), batch, options, sinks), generic)
        assert native.kernel_counts()[runs] == before + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_a_row_may_not_see_cannot_reach_it(dtype: torch.dtype) -> None:
    """Infinite keys and values at a request's last position leave its earlier rows of the same step alone."""
    batch = PagedBatch([(0, 70)], 6, 2, 64, dtype)
    expected = attend(backend(), batch, batch.options())
    last = batch.block_table[0, 69 // 16]
    batch.kv_cache[:, last, 69 % 16] = float("inf")
    got = attend(backend(), batch, batch.options())
    assert torch.equal(got[:69], expected[:69])
    assert got[69].isnan().all()


def test_query_and_cache_may_have_different_types() -> None:
    wide = PagedBatch([(0, 9), (70, 1)], 6, 2, 64)
    wide.kv_cache = wide.kv_cache.bfloat16()
    widened = PagedBatch([(0, 9), (70, 1)], 6, 2, 64)
    widened.kv_cache = wide.kv_cache.float()
    expected = attend(backend(), widened, widened.options())
    assert torch.equal(attend(backend(), wide, wide.options()), expected)
    wide.query = wide.query.bfloat16()
    widened.query = wide.query.float()
    rounded = attend(backend(), widened, widened.options()).bfloat16()
    without_tiles = "generic" if native.active_isa() == "amx" else "auto"
    assert torch.equal(attend(backend(isa=without_tiles), wide, wide.options()), rounded)


def test_more_query_heads_than_a_task_holds_are_divided() -> None:
    batch = PagedBatch([(0, 3), (20, 1)], 142, 2, 16)
    got, expected = attend(backend(), batch, batch.options()), batch.expected(batch.options())
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def shared_prefix(num_requests: int, prefix: int, dtype: torch.dtype = torch.float32) -> PagedBatch:
    """Decoding requests whose first blocks are the same ones."""
    batch = PagedBatch([(prefix + 5 + 40 * r, 1) for r in range(num_requests)], 6, 2, 32, cache_dtype=dtype)
    for request in range(1, num_requests):
        batch.block_table[request, : prefix // 16] = batch.block_table[0, : prefix // 16]
    return batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
@pytest.mark.parametrize("features", FEATURES, ids=str)
def test_requests_that_share_a_prefix_read_it_together_and_give_the_same_bits(
    features: dict[str, Any], dtype: torch.dtype
) -> None:
    batch, runs = shared_prefix(9, 1024 + 48, dtype), counter_of("paged_attention_shared", native.active_isa())
    options, sinks = batch.options(**features), torch.linspace(-1, 1, 6)
    before = native.kernel_counts().get(runs, 0)
    together = [attend(backend(threads), batch, options, sinks) for threads in (1, 2, 8)]
    if "sliding_window" not in features and "chunk_size" not in features:  # what these see lies in one split
        assert native.kernel_counts()[runs] == before + 3
    assert torch.equal(together[0], together[1]) and torch.equal(together[0], together[2])
    for request, (position, _) in enumerate(batch.lengths):
        alone = PagedBatch([(position, 1)], 6, 2, 32, cache_dtype=dtype)
        alone.kv_cache, alone.block_table = batch.kv_cache, batch.block_table[request : request + 1]
        alone.query = batch.query[request : request + 1]
        assert torch.equal(attend(backend(), alone, options, sinks)[0], together[0][request])


def test_splits_that_depend_on_the_batch_would_be_noticed() -> None:
    """The comparisons of this file fail for a kernel that divides a row's keys by how many requests there are."""
    batch = PagedBatch([(700, 1), (900, 1), (30, 1)], 6, 2, 32)
    options = batch.options()
    alone = PagedBatch([(700, 1)], 6, 2, 32)
    alone.kv_cache, alone.block_table, alone.query = batch.kv_cache, batch.block_table[:1], batch.query[:1]
    assert torch.equal(attend(backend(), alone, options)[0], attend(backend(), batch, options)[0])
    native.testing_split_by_batch(True)
    try:
        together, by_itself = attend(backend(), batch, options)[0], attend(backend(), alone, options)[0]
    finally:
        native.testing_split_by_batch(False)
    assert not torch.equal(by_itself, together)
    torch.testing.assert_close(by_itself, together)


def test_int8_is_bitwise_the_same_in_chunks_and_instruction_sets() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        batch = PagedBatch([(0, LENGTH)], 7, 1, 80, dtype=dtype, cache_dtype=torch.int8)
        for features in FEATURES:
            options = batch.options(**features)
            whole = attend(backend(), batch, options)
            for size in (1, 7, 64):
                assert torch.equal(in_chunks(backend(), batch, 0, LENGTH, size, options), whole)
            assert torch.equal(attend(backend(isa="generic"), batch, options), whole)
            native.set_isa("auto")
