"""The ops once more, written from their definitions in float64, one row at a time; nothing shared with the package."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.device.ops.hadamard import hadamard, hadamard_size
from octavo.device.ops.paged_attention import AttentionOptions, WorkList
from octavo.device.ops.qkv_rope_write import dequantize, write_kv


def rms_norm(x: Tensor, weight: Tensor, eps: float, offset: float) -> Tensor:
    rows = x.double()
    return rows / torch.sqrt((rows * rows).sum(-1, keepdim=True) / x.shape[-1] + eps) * (offset + weight.double())


def rotate(head: Tensor, position: int, cos_sin: Tensor, interleaved: bool) -> Tensor:
    """Turn each pair of one head's entries by its angle, as complex numbers."""
    out = head.double().clone()
    half = cos_sin.shape[1] // 2
    for i in range(half):
        first, second = (2 * i, 2 * i + 1) if interleaved else (i, i + half)
        turn = complex(float(cos_sin[position, i]), float(cos_sin[position, half + i]))
        turned = complex(float(head[first]), float(head[second])) * turn
        out[first], out[second] = turned.real, turned.imag
    return out


def attend(
    query: Tensor, keys: Tensor, values: Tensor, position: int, options: AttentionOptions, sink: float | None
) -> Tensor:
    """One row of one head: query [D], keys and values [length, D] of its request from position 0 on."""
    first = 0
    if options.sliding_window is not None:
        first = max(0, position - options.sliding_window + 1)
    if options.chunk_size is not None:
        first = position - position % options.chunk_size
    scores = [float(query.double() @ keys[p].double()) * options.scale for p in range(first, position + 1)]
    if options.softcap is not None:
        scores = [options.softcap * math.tanh(score / options.softcap) for score in scores]
    total = sum(math.exp(score) for score in scores) + (math.exp(sink) if sink is not None else 0.0)
    seen = values[first : position + 1].double()
    return sum((math.exp(score) / total * value for score, value in zip(scores, seen, strict=True)), torch.zeros(1))


def in_strips(kv_cache: Tensor) -> Tensor:
    """[2, num_blocks, block_size, num_kv_heads, head_size] as native kernels lay it out: strips of 16 tokens."""
    rows = kv_cache.transpose(2, 3).unflatten(3, (-1, 16))
    pack = 4 // kv_cache.element_size()
    keys, values = rows[..., :-4] if pack == 4 else rows
    keys = keys.unflatten(-1, (-1, pack)).transpose(-3, -2)
    values = values.unflatten(-2, (-1, pack)).transpose(-2, -1)
    parts = torch.stack((keys.flatten(3), values.flatten(3)), dim=3)
    if pack < 4:
        return parts
    return torch.cat((parts, rows[..., -4:].flatten(-2).movedim(0, 3)), dim=-1)


@dataclass
class PagedBatch:
    """Random requests in a paged cache of NaN: ``lengths`` are (tokens before, tokens of this step) per request."""

    lengths: list[tuple[int, int]]
    num_heads: int
    num_kv_heads: int
    head_size: int
    dtype: torch.dtype = torch.float32
    block_size: int = 16
    seed: int = 0
    cache_dtype: torch.dtype | None = None
    query: Tensor = field(init=False)
    keys: list[Tensor] = field(init=False)
    values: list[Tensor] = field(init=False)
    kv_cache: Tensor = field(init=False)
    block_table: Tensor = field(init=False)

    def __post_init__(self) -> None:
        numbers = torch.Generator().manual_seed(self.seed)
        rows = sum(new for _, new in self.lengths)
        self.query = self._random(numbers, rows, self.num_heads)
        totals = [before + new for before, new in self.lengths]
        self.keys = [self._random(numbers, total, self.num_kv_heads) for total in totals]
        self.values = [self._random(numbers, total, self.num_kv_heads) for total in totals]
        width = max((-(-total // self.block_size) for total in totals), default=0) + 1
        order = torch.randperm(len(totals) * width, generator=numbers) + 1
        self.block_table = order.view(len(totals), width).int()
        self.kv_cache = self._empty_cache(len(order) + 1)
        for request, total in enumerate(totals):
            positions = torch.arange(total)
            blocks = self.block_table[request, positions // self.block_size]
            slots = blocks.long() * self.block_size + positions % self.block_size
            write_kv(self.keys[request], self.values[request], self.kv_cache, slots)
            if self.kv_cache.dtype != self.dtype:
                self.keys[request], self.values[request] = (half[slots] for half in self._read())

    def _empty_cache(self, num_blocks: int) -> Tensor:
        dtype = self.cache_dtype or self.dtype
        shape = (2, num_blocks, self.block_size, self.num_kv_heads, self.head_size)
        if dtype != torch.int8:
            return torch.full(shape, float("nan"), dtype=dtype)
        return torch.full((*shape[:-1], self.head_size + 4), -1, dtype=torch.int8)  # whose scales are NaN

    def _read(self) -> Tensor:
        slots = self.kv_cache.flatten(1, 2)
        if slots.dtype != torch.int8:
            return slots
        keys, values = dequantize(slots).double()
        return torch.stack((hadamard(keys) / hadamard_size(self.head_size), values))

    def _random(self, numbers: torch.Generator, *shape: int) -> Tensor:
        return torch.randn(*shape, self.head_size, generator=numbers).to(self.dtype)

    @property
    def work(self) -> WorkList:
        starts = np.cumsum([0, *(new for _, new in self.lengths)], dtype=np.int32)
        seq_lens = np.array([before + new for before, new in self.lengths], dtype=np.int32)
        return WorkList(starts, seq_lens, self.block_table, self.block_size)

    def options(self, **features: float | None) -> AttentionOptions:
        return AttentionOptions(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_size=self.head_size,
            scale=self.head_size**-0.5,
            **features,
        )

    def expected(self, options: AttentionOptions, sinks: Tensor | None = None) -> Tensor:
        """[T, num_heads, head_size] float64."""
        out, row = torch.zeros(self.query.shape, dtype=torch.float64), 0
        for request, (before, new) in enumerate(self.lengths):
            for position in range(before, before + new):
                for head in range(self.num_heads):
                    kv = head // (self.num_heads // self.num_kv_heads)
                    keys, values = self.keys[request][:, kv], self.values[request][:, kv]
                    sink = None if sinks is None else float(sinks[head])
                    out[row, head] = attend(self.query[row, head], keys, values, position, options, sink)
                row += 1
        return out
