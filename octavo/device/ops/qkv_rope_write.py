"""qkv_rope_write: project to queries, keys and values, norm and rotate the first two, store the last two."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.ops.hadamard import hadamard
from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.rms_norm import rms_norm
from octavo.device.ops.rope import RopeTable, rope
from octavo.words.kv_cache_spec import SCALE_BYTES


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
    key_offset: Tensor | None = None,
) -> Tensor:
    """Compute each row's queries, and store its keys and values in its cache slot.

    x:            [T, hidden_size], or what an op made for ``weight`` as its reader.
    weight:       rows for all query heads, then all key heads, then all value heads (and their bias).
    positions:    [T] int64, below the table's length.
    kv_cache:     as the op's backend lays it out, written in place; for the reference [2, num_blocks, block_size,
                  num_kv_heads, head_size], keys then values, any float dtype, the strides of the first two axes free.
                  In int8 a key or value is followed by the four bytes of its float32 scale (``quantize``), and what
                  is stored of a key is its Hadamard transform: models have keys with a few very large entries.
    slot_mapping: [T] int64, block_id * block_size + offset, distinct; a row of slot -1 is padding and not stored.
    key_offset:   [num_kv_heads, head_size] float32 or None: what is stored of a rotated key is it less this.
    Returns queries [T, num_heads, head_size], rotated, not scaled, in the activations' dtype. All is float32 until a
    query is rounded to that, and a key and a value to the cache's: a bias may be hundreds of times what it is added to.
    """
    num_kv_heads, head_size = kv_cache.shape[3], _head_size(kv_cache)
    heads = weight.project(x, torch.float32).unflatten(-1, (-1, head_size))
    num_heads = heads.shape[1] - 2 * num_kv_heads
    query_key, value = heads.split((num_heads + num_kv_heads, num_kv_heads), dim=1)
    if norm is not None:
        query, key = query_key.split((num_heads, num_kv_heads), dim=1)
        query = rms_norm(query, norm.q_weight, norm.eps, norm.weight_offset)
        key = rms_norm(key, norm.k_weight, norm.eps, norm.weight_offset)
        query_key = torch.cat((query, key), dim=1)
    query, key = rope(query_key, positions, table).split((num_heads, num_kv_heads), dim=1)
    write_kv(key if key_offset is None else key - key_offset, value, kv_cache, slot_mapping)
    return query.to(weight.dtype)


def write_kv(key: Tensor, value: Tensor, kv_cache: Tensor, slot_mapping: Tensor) -> None:
    """Store rows [T, num_kv_heads, head_size] of keys and values in their slots; -1 is skipped."""
    stored = slot_mapping >= 0
    if not stored.all():
        key, value, slot_mapping = key[stored], value[stored], slot_mapping[stored]
    block_size = kv_cache.shape[2]
    slots = (slot_mapping // block_size, slot_mapping % block_size)
    if kv_cache.dtype == torch.int8:
        key = hadamard(key.float())
    kv_cache[0].index_put_(slots, _as_stored(key, kv_cache.dtype))
    kv_cache[1].index_put_(slots, _as_stored(value, kv_cache.dtype))


def quantize(entries: Tensor) -> tuple[Tensor, Tensor]:
    """Keys or values [..., head_size] as int8 and the scale to multiply them by, float32 [..., 1].

    The scale is the largest magnitude / 127; entries times 127 / largest are rounded to the nearest, ties to even.
    A number that is not finite makes the scale NaN.
    """
    entries = entries.float()
    largest = entries.abs().amax(dim=-1, keepdim=True)
    inverse = torch.where((largest > 0) & largest.isfinite(), 127 / largest, 0.0)
    scale = torch.where(largest.isfinite(), largest / 127, torch.nan)
    return (entries * inverse).nan_to_num_().round_().to(torch.int8), scale


def dequantize(stored: Tensor) -> Tensor:
    """Int8 entries and their scales, [..., head_size + 4], as float32 [..., head_size]."""
    entries, scale = stored[..., :-SCALE_BYTES], stored[..., -SCALE_BYTES:].contiguous().view(torch.float32)
    return entries * scale


def _as_stored(entries: Tensor, dtype: torch.dtype) -> Tensor:
    if dtype != torch.int8:
        return entries.to(dtype)
    whole, scale = quantize(entries)
    return torch.cat((whole, scale.view(torch.int8)), dim=-1)


def _head_size(kv_cache: Tensor) -> int:
    return kv_cache.shape[-1] - (SCALE_BYTES if kv_cache.dtype == torch.int8 else 0)
