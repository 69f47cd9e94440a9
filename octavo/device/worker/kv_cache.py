"""The memory behind the KV cache: allocated as planned, and shown to each attention layer as a tensor of its shape."""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.attention.backend import AttentionBackend
from octavo.device.layers.attention import Attention
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    SlidingWindowSpec,
)

HUGE_PAGE = 2 << 20

TWO_HALVES = (FullAttentionSpec, SlidingWindowSpec, ChunkedLocalAttentionSpec)
"""Kinds of cache that are one half of keys and one of values."""


@dataclass(frozen=True)
class LayerGroup:
    """One KV group on the device: its layers, with those that share a cache of the group, and their kernel blocks."""

    spec: AttentionSpec
    layers: dict[str, Attention]
    kernel_block_size: int


def layer_groups(config: KVCacheConfig, layers: Mapping[str, Attention]) -> list[LayerGroup]:
    """The groups of a plan with their layers. Raises UnsupportedError for a kind of cache that has no tensors here."""
    groups = []
    for group in config.groups:
        if not isinstance(group.spec, TWO_HALVES):
            kind = type(group.spec).__name__
            raise UnsupportedError(
                f"layer {group.layer_names[0]!r} needs a cache of kind {kind}, which is not built yet."
            )
        sharing = [name for name, owner in config.shared_layers.items() if owner in group.layer_names]
        members = {name: layers[name] for name in (*group.layer_names, *sharing)}
        is_padded = group.spec.page_bytes > group.spec.natural_page_bytes
        whole = group.spec.block_size
        size = whole if is_padded else kernel_block_size(whole, (layer.backend for layer in members.values()))
        groups.append(LayerGroup(group.spec, members, size))
    return groups


class KVCache:
    """Owns the allocations and the views into them; ``layers`` has one view per attention layer.

    A view has the shape its backend asks for kernel blocks; in memory it is block after block. Layers of different
    groups share an allocation: they never hold the same block at the same time. Pages that nothing was written to cost
    no memory.
    """

    def __init__(self, config: KVCacheConfig, groups: Sequence[LayerGroup]) -> None:
        group_of = {name: group for group in groups for name in group.layers}
        self._pages: list[Tensor] = []
        self.layers: dict[str, Tensor] = {}
        for tensor in config.tensors:
            memory = untouched(tensor.size_bytes)
            self._pages.append(memory.view(config.num_blocks, -1))
            for name in tensor.layer_names:
                self.layers[name] = _layer_view(memory, group_of[name], config.num_blocks)
        self.layers |= {name: self.layers[owner] for name, owner in config.shared_layers.items()}

    def copy_blocks(self, pairs: Iterable[tuple[int, int]]) -> None:
        """Copy whole blocks, (source, destination), in all layers."""
        for source, destination in pairs:
            for pages in self._pages:
                pages[destination] = pages[source]

    def zero_blocks(self, block_ids: Sequence[int]) -> None:
        """Clear whole blocks in all layers."""
        if block_ids:
            for pages in self._pages:
                pages[list(block_ids)] = 0


def untouched(num_bytes: int) -> Tensor:
    """Zeros that take no memory before they are written to; from then on in huge pages, where the system gives them.

    Attention reads whole blocks here and there, and with small pages it waits for their addresses too.
    """
    step = HUGE_PAGE if num_bytes >= HUGE_PAGE else mmap.PAGESIZE
    memory = mmap.mmap(-1, num_bytes + step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    pages = torch.frombuffer(memory, dtype=torch.uint8)
    start = -pages.data_ptr() % step
    return pages[start : start + num_bytes]


def _layer_view(memory: Tensor, group: LayerGroup, num_blocks: int) -> Tensor:
    spec, backend = group.spec.with_block_size(group.kernel_block_size), next(iter(group.layers.values())).backend
    pages = memory.view(getattr(torch, spec.dtype)).view(num_blocks, -1)
    kernel_blocks = group.spec.block_size // spec.block_size
    entries = group.spec.natural_page_bytes // pages.element_size()
    if pages.shape[1] > entries:
        # With padding behind each block there is no one stride from kernel block to kernel block.
        assert kernel_blocks == 1, "padded pages are not split into kernel blocks"
        pages = pages[:, :entries]
    shape = list(backend.kv_cache_shape(num_blocks * kernel_blocks, spec))
    num_kernel_blocks = shape.pop(backend.block_axis)
    return pages.unflatten(1, (kernel_blocks, *shape)).view(num_kernel_blocks, *shape).movedim(0, backend.block_axis)


def kernel_block_size(block_size: int, backends: Iterable[AttentionBackend]) -> int:
    """The size all these backends compute with: the most preferred one that divides the block, else the block itself.

    Raises UnsupportedError if the block suits none of that.
    """
    backends = list(backends)

    def suits_all(size: int) -> bool:
        return block_size % size == 0 and all(size % b.support.block_size_multiple == 0 for b in backends)

    preferred = dict.fromkeys(size for backend in backends for size in backend.preferred_block_sizes)
    for size in (*preferred, block_size):
        if suits_all(size):
            return size
    raise UnsupportedError(
        f"block_size {block_size} cannot be computed with",
        [f"{b.name}: needs a multiple of {b.support.block_size_multiple}" for b in backends],
    )
