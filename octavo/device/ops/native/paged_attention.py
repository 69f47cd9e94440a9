"""paged_attention by native kernels; outputs do not depend on the batch, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16
from octavo.device.ops.native.kv_cache import cache_view
from octavo.device.ops.paged_attention import AttentionOptions, WorkList


class NativeStep:
    """A step's rows as native attention reads them, made once for all layers of a KV group; keeps its arrays alive.

    query_start_loc: [R + 1], seq_lens: [R] and block_table: [R, max_blocks], int32 on the host.
    """

    def __init__(self, native: NativeContext, query_start_loc: Tensor, seq_lens: Tensor, block_table: Tensor) -> None:
        # Columns of a wider table are fine: its rows have a stride.
        table = block_table if block_table.stride(1) == 1 else block_table.contiguous()
        self.arrays = (query_start_loc.contiguous(), seq_lens.contiguous(), table)
        assert all(array.dtype == torch.int32 for array in self.arrays)
        self.num_requests = len(seq_lens)
        addresses = (array.data_ptr() for array in self.arrays)
        self.view: Any = native.library.StepView(*addresses, self.arrays[2].stride(0))


def attend(
    native: NativeContext,
    query: Tensor,
    kv_cache: Tensor,
    step: NativeStep,
    options: AttentionOptions,
    sinks: Tensor | None = None,
) -> Tensor:
    """As ``ops/paged_attention``, from a cache as ``ops/native/kv_cache`` says; head sizes are multiples of 8."""
    query = query.contiguous()
    out = native.empty(query, *query.shape[1:])
    layer = native.library.AttentionLayer(
        options.num_heads,
        options.num_kv_heads,
        options.head_size,
        options.scale,
        options.softcap or 0.0,
        options.sliding_window or 0,
        options.chunk_size or 0,
    )
    logits = None if sinks is None else sinks.float().contiguous()
    tensors = (query, out, *step.arrays, kv_cache) if logits is None else (query, out, *step.arrays, kv_cache, logits)
    addresses = (query.data_ptr(), out.data_ptr())
    cache, half = cache_view(native, kv_cache), is_bfloat16(query.dtype)
    launch = layer.attend(step.view, cache, *addresses, half, 0 if logits is None else logits.data_ptr())
    native.run(launch, len(query), *tensors, num_requests=step.num_requests)
    return out


def paged_attention(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/paged_attention``."""

    def paged_attention(
        query: Tensor, kv_cache: Tensor, work: WorkList, options: AttentionOptions, sinks: Tensor | None = None
    ) -> Tensor:
        step = NativeStep(native, work.query_start_loc, work.seq_lens, work.block_table)
        return attend(native, query, kv_cache, step, options, sinks)

    return paged_attention
