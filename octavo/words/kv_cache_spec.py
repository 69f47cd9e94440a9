"""What each layer asks of the KV cache, and what was given to it: plain data that does its own arithmetic.

A *block* is ``block_size`` tokens of one group's layers. A *page* is one block of one layer, in bytes. All groups
draw block ids from one pool, so the pages of all groups are made equal in size (see control/kv/planning.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1, "uint8": 1, "float64": 8}

SCALE_BYTES = 4
"""Bytes of the float32 scale that an int8 key, and an int8 value, of one token and head comes with."""


def cdiv(a: int, b: int) -> int:
    """Integer division rounded up."""
    return -(-a // b)


class KVCacheSpec(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One layer's need. ``block_size`` is in tokens; ``page_size_padded`` (bytes) overrides the natural page size."""

    block_size: int
    page_size_padded: int | None = None

    @property
    def natural_page_bytes(self) -> int:
        """Bytes of one block of one layer, before padding."""
        raise NotImplementedError

    @property
    def page_bytes(self) -> int:
        return self.page_size_padded or self.natural_page_bytes

    @property
    def is_prefix_cacheable(self) -> bool:
        return True

    def max_blocks_per_request(self, max_model_len: int, max_tokens_in_flight: int) -> int:
        """Most blocks one request can hold at once; the same formula at start-up and at run time."""
        return cdiv(max_model_len, self.block_size)

    def with_block_size(self, block_size: int) -> KVCacheSpec:
        return msgspec.structs.replace(self, block_size=block_size)


class AttentionSpec(KVCacheSpec, frozen=True, kw_only=True, tag=True):
    """Keys and values per token: 2 x num_kv_heads x head_size entries of ``dtype`` (a name, see DTYPE_BYTES).

    Keys and values of int8 have a scale each, which is stored within the page.
    """

    num_kv_heads: int
    head_size: int
    dtype: str

    @property
    def entries_per_head(self) -> int:
        """Entries that a key, or a value, of one token and head takes, its scale included."""
        return self.head_size + (SCALE_BYTES if self.dtype == "int8" else 0)

    @property
    def natural_page_bytes(self) -> int:
        return 2 * self.block_size * self.num_kv_heads * self.entries_per_head * DTYPE_BYTES[self.dtype]


class FullAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="full"):
    """Every token is kept. ``sliding_window`` is set where a window layer is served as a full one."""

    sliding_window: int | None = None


class SlidingWindowSpec(AttentionSpec, frozen=True, kw_only=True, tag="sliding_window"):
    """A token attends to itself and the ``sliding_window - 1`` tokens before it; older blocks are given back."""

    sliding_window: int

    def max_blocks_per_request(self, max_model_len: int, max_tokens_in_flight: int) -> int:
        in_flight = min(max_tokens_in_flight, max_model_len)
        tokens = min(self.sliding_window - 1 + in_flight, max_model_len)
        # + 1: the window need not begin at a block border.
        return min(cdiv(tokens, self.block_size) + 1, cdiv(max_model_len, self.block_size))


class ChunkedLocalAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="chunked_local"):
    """A token attends within its own chunk of ``chunk_size`` tokens; earlier chunks are given back."""

    chunk_size: int

    def max_blocks_per_request(self, max_model_len: int, max_tokens_in_flight: int) -> int:
        in_flight = min(max_tokens_in_flight, max_model_len)
        tokens = min(self.chunk_size - 1 + in_flight, max_model_len)
        return min(cdiv(tokens, self.block_size) + 1, cdiv(max_model_len, self.block_size))


class MLAAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="mla"):
    """One latent vector per token (``head_size`` entries, one copy, not split by tensor parallelism)."""

    @property
    def natural_page_bytes(self) -> int:
        return self.block_size * self.num_kv_heads * self.head_size * DTYPE_BYTES[self.dtype]


class SinkFullAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="sink_full"):
    """Full attention whose first ``sink_len`` tokens are permanent; a multiple of the block size."""

    sink_len: int


class MambaSpec(KVCacheSpec, frozen=True, kw_only=True, tag="mamba"):
    """Recurrent state: one block per request, whatever its length. ``shapes`` and ``dtypes`` name its tensors."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def natural_page_bytes(self) -> int:
        total = 0
        for shape, dtype in zip(self.shapes, self.dtypes, strict=True):
            entries = 1
            for extent in shape:
                entries *= extent
            total += entries * DTYPE_BYTES[dtype]
        return total

    @property
    def is_prefix_cacheable(self) -> bool:
        return False

    def max_blocks_per_request(self, max_model_len: int, max_tokens_in_flight: int) -> int:
        return 1


class CrossAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="cross"):
    """Keys and values of the encoder's output, allocated once per request; never prefix-cached."""

    max_encoder_tokens: int

    @property
    def is_prefix_cacheable(self) -> bool:
        return False

    def max_blocks_per_request(self, max_model_len: int, max_tokens_in_flight: int) -> int:
        return cdiv(self.max_encoder_tokens, self.block_size)


class EncoderOnlyAttentionSpec(AttentionSpec, frozen=True, kw_only=True, tag="encoder_only"):
    """Bidirectional attention within one step: nothing is kept."""

    @property
    def is_prefix_cacheable(self) -> bool:
        return False

    def max_blocks_per_request(self, max_model_len: int, max_tokens_in_flight: int) -> int:
        return 0


AnyKVCacheSpec: TypeAlias = (
    FullAttentionSpec
    | SlidingWindowSpec
    | ChunkedLocalAttentionSpec
    | MLAAttentionSpec
    | SinkFullAttentionSpec
    | MambaSpec
    | CrossAttentionSpec
    | EncoderOnlyAttentionSpec
)


class KVCacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. ``spec`` holds for each of them (``spec.block_size`` is the group's)."""

    layer_names: tuple[str, ...]
    spec: AnyKVCacheSpec


class KVCacheTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One allocation of ``num_blocks`` pages; ``layer_names`` has at most one layer of each group."""

    size_bytes: int
    layer_names: tuple[str, ...]


class KVCacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What memory profiling taught: the third of *asked, decided, learnt*. Sent in READY; nobody changes it.

    ``num_blocks`` includes the null block 0. ``scheduler_block_size`` is the LCM of the groups' sizes,
    ``hash_block_size`` the GCD of the prefix-cacheable ones. ``shared_layers`` maps a layer that reuses another
    layer's cache to that layer. ``max_model_len`` is the fitted value. ``drafter`` is the cache of a drafter's
    layers: of one group, whose block table is that of our group ``drafter_follows``, with pages of its own under the
    same numbers.
    """

    num_blocks: int
    groups: tuple[KVCacheGroup, ...]
    tensors: tuple[KVCacheTensor, ...]
    scheduler_block_size: int
    hash_block_size: int
    max_model_len: int
    shared_layers: dict[str, str] = {}
    drafter: KVCacheConfig | None = None
    drafter_follows: int = 0

    @property
    def num_usable_blocks(self) -> int:
        return self.num_blocks - 1


def windows_as_full(specs: Mapping[str, AnyKVCacheSpec]) -> dict[str, AnyKVCacheSpec]:
    """Serve sliding windows and local chunks as full attention, so that fewer groups are needed.

    The memory of tokens outside the window is spent; the layer still masks them.
    """
    attention = [spec for spec in specs.values() if isinstance(spec, AttentionSpec)]
    windows = {getattr(spec, "sliding_window", None) for spec in attention}
    # A group's spec holds for each of its layers: the window is only kept where all have the same.
    window = windows.pop() if len(windows) == 1 else None
    return {
        name: FullAttentionSpec(
            block_size=spec.block_size,
            page_size_padded=spec.page_size_padded,
            num_kv_heads=spec.num_kv_heads,
            head_size=spec.head_size,
            dtype=spec.dtype,
            sliding_window=window,
        )
        if isinstance(spec, FullAttentionSpec | SlidingWindowSpec | ChunkedLocalAttentionSpec)
        else spec
        for name, spec in specs.items()
    }


def following_specs(specs: Mapping[str, AnyKVCacheSpec], followed: KVCacheGroup) -> dict[str, AnyKVCacheSpec]:
    """What a drafter's layers ask where they share the block table of a group: they keep every token, as it does."""
    block_size = followed.spec.block_size
    return {name: spec.with_block_size(block_size) for name, spec in windows_as_full(specs).items()}  # type: ignore[misc]


def following_cache(
    specs: Mapping[str, AnyKVCacheSpec], followed: KVCacheGroup, *, num_blocks: int, max_model_len: int
) -> KVCacheConfig:
    """The cache of a drafter's layers, beside that of the model whose group they follow."""
    specs = following_specs(specs, followed)
    (spec,) = set(specs.values())
    return KVCacheConfig(
        num_blocks=num_blocks,
        groups=(KVCacheGroup(layer_names=tuple(specs), spec=spec),),
        tensors=tuple(KVCacheTensor(size_bytes=num_blocks * spec.page_bytes, layer_names=(name,)) for name in specs),
        scheduler_block_size=spec.block_size,
        hash_block_size=spec.block_size,
        max_model_len=max_model_len,
    )
