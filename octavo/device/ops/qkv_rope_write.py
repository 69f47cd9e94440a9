"""qkv_rope_write: project to queries, keys and values, norm and rotate the first two, store the last two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.ops.linear import LinearWeight, linear
from octavo.device.ops.rms_norm import rms_norm
from octavo.device.ops.rope import RopeTable, rope


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norms over each query and key head before rotation; weights are [head_size]."""

    q_weight: Tensor
    k_weight: Tensor
    eps: float
    weight_offset: float = 0.0


def qkv_rope_write(
    x: Tensor,
    weight: LinearWeight,
    positions: Tensor,
    table: RopeTable,
    kv_cache: Tensor,
    slot_mapping: Tensor,
    norm: HeadNorm | None = None,
) -> Tensor:
    """Compute each row's queries, and store its keys and values in its cache slot.

    x:            [T, hidden_size].
    weight:       rows for all query heads, then all key heads, then all value heads (and their bias).
    positions:    [T] int64, below the table's length.
    kv_cache:     [2, num_blocks, block_size, num_kv_heads, head_size], keys then values, any float dtype; written in
                  place; the strides of the first two axes are free.
    slot_mapping: [T] int64, block_id * block_size + offset, distinct; a row of slot -1 is padding and not stored.
    Returns queries [T, num_heads, head_size], rotated, not scaled, in x's dtype. The projection is rounded to x's
    dtype as ``linear`` does; norm and rotation are float32 each with one rounding to x's dtype; what is stored is then
    converted to the cache's dtype.
    """
    num_kv_heads, head_size = kv_cache.shape[3:]
    heads = linear(x, weight).unflatten(-1, (-1, head_size))
    num_heads = heads.shape[1] - 2 * num_kv_heads
    query_key, value = heads.split((num_heads + num_kv_heads, num_kv_heads), dim=1)
    if norm is not None:
        query, key = query_key.split((num_heads, num_kv_heads), dim=1)
        query = rms_norm(query, norm.q_weight, norm.eps, norm.weight_offset)
        key = rms_norm(key, norm.k_weight, norm.eps, norm.weight_offset)
        query_key = torch.cat((query, key), dim=1)
    query, key = rope(query_key, positions, table).to(x.dtype).split((num_heads, num_kv_heads), dim=1)
    write_kv(key, value, kv_cache, slot_mapping)
    return query


def write_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store rows [T, num_kv_heads, head_size] of keys and values in their slots; -1 is skipped."""
    stored = slot_mapping >= 0
    if not stored.all():
        key, value, slot_mapping = key[stored], value[stored], slot_mapping[stored]
    block_size = kv_cache.shape[2]
    slots = (slot_mapping // block_size, slot_mapping % block_size)
    kv_cache[0].index_put_(slots, key.to(kv_cache.dtype))
    kv_cache[1].index_put_(slots, value.to(kv_cache.dtype))
