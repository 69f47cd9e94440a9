"""qkv_rope_write by native kernels: one, where the projection's weight is packed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16
from octavo.device.ops.native.kv_cache import cache_view, head_size_of
from octavo.device.ops.native.linear import PackedWeight, packed
from octavo.device.ops.qkv_rope_write import HeadNorm
from octavo.device.ops.rope import RopeTable


def qkv_rope_write(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/qkv_rope_write``, for a cache as ``ops/native/kv_cache`` says."""

    def qkv_rope_write(
        x: Tensor,
        weight: LinearWeight,
        positions: Tensor,
        table: RopeTable,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        norm: HeadNorm | None = None,
        key_offset: Tensor | None = None,
    ) -> Tensor:
        weight = packed(native, weight)
        fused = weight if isinstance(weight, PackedWeight) else None
        projected = fused.room(x) if fused else weight.project(x, torch.float32).contiguous()
        num_kv_heads, head_size = kv_cache.shape[1], head_size_of(kv_cache)
        num_heads = projected.shape[1] // head_size - 2 * num_kv_heads
        assert positions.dtype == slot_mapping.dtype == torch.int64
        assert len(positions) == len(slot_mapping) == len(x)
        query = native.empty(projected, num_heads, head_size, dtype=weight.dtype)
        rows = (projected, positions.contiguous(), slot_mapping.contiguous(), query)
        layer = _layer(native, num_heads, table, kv_cache, norm, key_offset)
        layer.set_rows(*(tensor.data_ptr() for tensor in rows))
        if fused:
            fused.project_heads(x, layer, *rows, kv_cache)
        else:
            native.run(layer.launch(is_bfloat16(weight.dtype)), len(x), *rows, kv_cache)
        return query

    return qkv_rope_write


def _layer(
    native: NativeContext,
    num_heads: int,
    table: RopeTable,
    kv_cache: Tensor,
    norm: HeadNorm | None,
    key_offset: Tensor | None,
) -> Any:
    num_kv_heads, head_size = kv_cache.shape[1], head_size_of(kv_cache)
    num_positions, rotary_dim = table.cos_sin.shape
    assert table.cos_sin.dtype == torch.float32 and table.cos_sin.is_contiguous()
    layer = native.library.RopeWriteLayer(num_heads, num_kv_heads, head_size, rotary_dim, table.interleaved)
    layer.set_table(table.cos_sin.data_ptr(), num_positions)
    layer.set_cache(cache_view(native, kv_cache))
    if norm is not None:
        layer.set_norm(norm.q_weight.data_ptr(), norm.k_weight.data_ptr(), norm.eps, norm.weight_offset)
    if key_offset is not None:
        assert key_offset.shape == (num_kv_heads, head_size) and key_offset.dtype == torch.float32
        layer.set_key_offset(key_offset.data_ptr())
    return layer
