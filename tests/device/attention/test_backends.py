"""Every backend through its seam: shapes, features, chunking, and what it must not look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.device.attention.backend import AttentionBackend
from octavo.device.attention.metadata import AttentionMetadata
from octavo.device.attention.select import load_backend
from octavo.device.ops.native.context import open_native
from octavo.device.ops.paged_attention import ROWS_PER_TILE
from tests.device.attention.batches import MIXED, attend, attend_to, common_of, laid_out
from tests.device.ops.naive import PagedBatch


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=["reference", "cpu"])
def backend(request: pytest.FixtureRequest) -> AttentionBackend:
    backend_class = load_backend(request.param)
    if not backend_class.support.needs_native:
        return backend_class()
    pytest.importorskip("octavo._native", reason="built without the native module")
    return backend_class(open_native(num_threads=2))


def close(got: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(got.double(), expected.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head_size", [64, 80, 128, 256])
@pytest.mark.parametrize("group", [1, 3, 7])
def test_mixed_batches_match_the_definition(backend: AttentionBackend, head_size: int, group: int) -> None:
    batch = PagedBatch(MIXED, 2 * group, 2, head_size)
    close(attend(backend, batch, batch.options()), batch.expected(batch.options()))


@pytest.mark.parametrize("block_size", [16, 32])
@pytest.mark.parametrize(
    "features",
    [
        {"sliding_window": 1},
        {"sliding_window": 8},
        {"sliding_window": 13},
        {"chunk_size": 8},
        {"chunk_size": 5},
        {"softcap": 0.7},
        {"softcap": 0.7, "sliding_window": 9},
    ],
    ids=str,
)
def test_windows_chunks_and_softcaps_match_the_definition(
    backend: AttentionBackend, features: dict[str, Any], block_size: int
) -> None:
    batch = PagedBatch(MIXED, 6, 2, 64, block_size=block_size)
    options = batch.options(**features)
    close(attend(backend, batch, options), batch.expected(options))
    sinks = torch.linspace(-2, 2, 6)
    close(attend(backend, batch, options, sinks), batch.expected(options, sinks))


def test_a_prompt_in_chunks_is_the_prompt_at_once(backend: AttentionBackend) -> None:
    length = ROWS_PER_TILE + 60  # more than a tile
    whole = PagedBatch([(0, length)], 6, 2, 16, block_size=16)
    for features in ({}, {"sliding_window": 50}):
        options = whole.options(**features)
        at_once = attend(backend, whole, options)
        for start, stop in ((0, 1), (1, 8), (8, 290), (290, length)):
            chunk = PagedBatch([(start, stop - start)], 6, 2, 16, block_size=16)
            chunk.kv_cache, chunk.block_table = whole.kv_cache, whole.block_table
            chunk.query = whole.query[start:stop]
            close(attend(backend, chunk, options), at_once[start:stop])


def test_batch_mates_change_rounding_only(backend: AttentionBackend) -> None:
    lengths = [(n, 1) for n in (3, 90, 17, 64, 31, 32, 33)] + [(10, 5), (0, 40)]
    batch = PagedBatch(lengths, 6, 2, 16)
    together, row = attend(backend, batch, batch.options()), 0
    for request, (before, new) in enumerate(lengths):
        alone = PagedBatch([(before, new)], 6, 2, 16)
        alone.kv_cache, alone.block_table = batch.kv_cache, batch.block_table[request : request + 1]
        alone.query = batch.query[row : row + new]
        close(attend(backend, alone, batch.options()), together[row : row + new])
        row += new


def test_what_a_window_left_behind_is_never_read(backend: AttentionBackend) -> None:
    """Blocks before the window were given back: their table entries are the null block, and others fill them."""
    batch = PagedBatch([(60, 1), (50, 9)], 6, 2, 16)
    options = batch.options(sliding_window=10)
    expected = attend(backend, batch, options)
    batch.kv_cache[:, batch.block_table[0, :3].long()] = float("nan")
    batch.block_table[0, :3] = 0
    batch.block_table[1, :2] = 0
    got = attend(backend, batch, options)
    assert not got.isnan().any()
    close(got, expected)


def test_rows_and_requests_without_work_are_zero(backend: AttentionBackend) -> None:
    empty = PagedBatch([], 6, 2, 16)
    assert attend(backend, empty, empty.options()).shape == (0, 6, 16)
    batch = PagedBatch([(4, 0), (0, 3), (7, 0)], 6, 2, 16)
    batch.query = torch.cat((batch.query, torch.randn(2, 6, 16)))  # two rows of padding
    got = attend(backend, batch, batch.options())
    assert got[3:].abs().max() == 0
    close(got[:3], PagedBatch.expected(batch, batch.options())[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8], ids=str)
def test_the_cache_may_be_strided_by_pages(backend: AttentionBackend, dtype: torch.dtype) -> None:
    """Block after block with something behind each, as where groups share memory."""
    batch = PagedBatch(MIXED, 6, 2, 16, cache_dtype=dtype)
    kv_cache = laid_out(backend, batch).movedim(backend.block_axis, 0)
    expected = attend(backend, batch, batch.options())
    padded = torch.cat((kv_cache.flatten(1), torch.ones(len(kv_cache), 64).to(dtype)), dim=1)
    strided = padded[:, :-64].view(kv_cache.shape).movedim(0, backend.block_axis)
    assert torch.equal(attend_to(backend, batch, strided, batch.options(), None), expected)


def test_int8_keys_and_values_are_what_their_scales_make_of_them(backend: AttentionBackend) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        batch = PagedBatch(MIXED, 6, 2, 24, dtype=dtype, cache_dtype=torch.int8)
        options, tolerance = batch.options(softcap=3.0), 1e-5 if dtype == torch.float32 else 2**-8
        got, expected = attend(backend, batch, options), batch.expected(options)
        torch.testing.assert_close(got.double(), expected, rtol=tolerance, atol=tolerance)


def test_the_metadata_of_another_backend_is_refused(backend: AttentionBackend) -> None:
    batch = PagedBatch([(0, 1)], 6, 2, 16)
    plain = AttentionMetadata.of(common_of(batch))
    with pytest.raises(TypeError, match="another backend: AttentionMetadata"):
        backend.forward(batch.query, batch.kv_cache, plain, batch.options())
