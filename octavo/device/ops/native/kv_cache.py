"""The cache as native kernels lay it out: blocks of strips, 16 tokens of one head each (``csrc/kv_cache.h``)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.words.kv_cache_spec import SCALE_BYTES, AttentionSpec

TOKENS_PER_STRIP = 16


def native_cache_shape(num_blocks: int, spec: AttentionSpec) -> tuple[int, ...]:
    """[num_blocks, num_kv_heads, strips of a block, 2, entries of a strip's keys or values with their scales]."""
    strips = spec.block_size // TOKENS_PER_STRIP
    return (num_blocks, spec.num_kv_heads, strips, 2, TOKENS_PER_STRIP * spec.entries_per_head)


def cache_view(native: NativeContext, kv_cache: Tensor) -> Any:
    """The library's view of a cache of that shape, whose stride from block to block is free."""
    num_blocks, num_kv_heads, strips, _, entries = kv_cache.shape
    assert kv_cache[0].is_contiguous(), "a block of the cache must be contiguous"
    return native.library.KVCache(
        kv_cache.data_ptr(),
        kv_cache.stride(0) * kv_cache.element_size(),
        num_blocks,
        strips * TOKENS_PER_STRIP,
        num_kv_heads,
        head_size_of(kv_cache),
        str(kv_cache.dtype).removeprefix("torch."),
    )


def head_size_of(kv_cache: Tensor) -> int:
    """Entries of a key, without what belongs to its scale."""
    return kv_cache.shape[-1] // TOKENS_PER_STRIP - (SCALE_BYTES if kv_cache.dtype == torch.int8 else 0)
