"""Paged batches through a backend's seam, for the tests of backends."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from octavo.device.attention.backend import AttentionBackend
from octavo.device.attention.metadata import CommonMetadata
from octavo.device.ops.paged_attention import AttentionOptions
from octavo.words.kv_cache_spec import FullAttentionSpec
from tests.device.ops.naive import PagedBatch, in_strips

MIXED = [(0, 11), (37, 1), (0, 1), (18, 6), (3, 1)]
"""(tokens before, tokens of this step) of requests that a step may well have together."""


def common_of(batch: PagedBatch) -> CommonMetadata:
    starts = np.cumsum([0, *(new for _, new in batch.lengths)], dtype=np.int32)
    seq_lens = np.array([before + new for before, new in batch.lengths], dtype=np.int32)
    return CommonMetadata(
        query_start_loc=torch.from_numpy(starts),
        seq_lens=torch.from_numpy(seq_lens),
        block_table=batch.block_table,
        slot_mapping=torch.zeros(int(starts[-1]), dtype=torch.int64),
        query_start_loc_host=starts,
        seq_lens_host=seq_lens,
        block_size=batch.block_size,
        max_query_len=max((new for _, new in batch.lengths), default=0),
        max_seq_len=int(seq_lens.max(initial=0)),
    )


def attend(
    backend: AttentionBackend, batch: PagedBatch, options: AttentionOptions, sinks: Tensor | None = None
) -> Tensor:
    return attend_to(backend, batch, laid_out(backend, batch), options, sinks)


def laid_out(backend: AttentionBackend, batch: PagedBatch) -> Tensor:
    """The batch's cache as the backend has it."""
    kv_cache = batch.kv_cache if backend.name == "reference" else in_strips(batch.kv_cache)
    spec = spec_of(batch)
    assert kv_cache.shape == backend.kv_cache_shape(batch.kv_cache.shape[1], spec)
    return kv_cache


def attend_to(
    backend: AttentionBackend, batch: PagedBatch, kv_cache: Tensor, options: AttentionOptions, sinks: Tensor | None
) -> Tensor:
    metadata = backend.build_metadata(common_of(batch), spec_of(batch))
    return backend.forward(batch.query, kv_cache, metadata, options, sinks)


def spec_of(batch: PagedBatch) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=batch.block_size,
        num_kv_heads=batch.num_kv_heads,
        head_size=batch.head_size,
        dtype=str(batch.kv_cache.dtype).removeprefix("torch."),
    )


def part_of(whole: PagedBatch, request: int, start: int, stop: int) -> PagedBatch:
    """Rows start .. stop of one request of a batch whose requests have no tokens before the step, in the same cache."""
    first_row = sum(new for _, new in whole.lengths[:request])
    shape = (whole.num_heads, whole.num_kv_heads, whole.head_size, whole.dtype)
    part = PagedBatch([(start, stop - start)], *shape)
    part.kv_cache, part.block_table = whole.kv_cache, whole.block_table[request : request + 1]
    part.block_size = whole.block_size
    part.query = whole.query[first_row + start : first_row + stop]
    return part


def in_chunks(
    backend: AttentionBackend,
    whole: PagedBatch,
    request: int,
    length: int,
    size: int,
    options: AttentionOptions,
    sinks: Tensor | None = None,
) -> Tensor:
    """One request's first rows, some at a time."""
    parts = [part_of(whole, request, at, min(at + size, length)) for at in range(0, length, size)]
    return torch.cat([attend(backend, part, options, sinks) for part in parts])
