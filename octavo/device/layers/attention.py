"""The attention layer: what one layer asks of the KV cache, and the cache it was given."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from octavo.device.attention.backend import AttentionBackend
from octavo.device.attention.context import ForwardContext
from octavo.device.attention.metadata import AttentionMetadata
from octavo.device.ops.paged_attention import AttentionOptions
from octavo.words.kv_cache_spec import (
    AttentionSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
)


class Attention(nn.Module):
    """Causal attention of one layer over its paged cache; ``name`` is its key in specs, metadata and caches.

    ``kv_cache`` is of the backend's ``kv_cache_shape``, owned by the worker, which binds it with ``bind_kv_cache``; a
    forward before that is a bug of ours.

    ``key_offset`` [num_kv_heads, head_size] float32, or None, is taken off every key that is stored. It changes no
    output but for rounding: all scores of a query fall by its product with it, which softmax does not see.
    """

    kv_cache: Tensor

    def __init__(
        self,
        name: str,
        options: AttentionOptions,
        backend: AttentionBackend,
        kv_cache_dtype: torch.dtype,
        *,
        sinks: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.name = name
        self.options = options
        self.backend = backend
        self.kv_cache_dtype = kv_cache_dtype
        self.sinks = sinks
        self.key_offset: Tensor | None = None
        self.kv_cache = torch.empty(0, dtype=kv_cache_dtype)

    def may_offset_keys(self) -> bool:
        """Whether only differences of scores count; with a softcap or sinks their height does too."""
        return self.options.softcap is None and self.sinks is None

    def metadata(self, ctx: ForwardContext) -> AttentionMetadata:
        return ctx.metadata[self.name]

    def forward(self, query: Tensor, ctx: ForwardContext) -> Tensor:
        """query: [T, num_heads, head_size] -> [T, num_heads * head_size]; keys and values are in the cache."""
        out = self.backend.forward(query, self.kv_cache, self.metadata(ctx), self.options, self.sinks)
        return out.flatten(1)

    def kv_cache_spec(self) -> AttentionSpec:
        """This layer's need; ``block_size`` is the backend's first choice until planning settles it."""
        options = self.options
        block_size, heads, head_size = self.backend.preferred_block_sizes[0], options.num_kv_heads, options.head_size
        dtype = str(self.kv_cache_dtype).removeprefix("torch.")
        if options.sliding_window is not None:
            return SlidingWindowSpec(
                block_size=block_size,
                num_kv_heads=heads,
                head_size=head_size,
                dtype=dtype,
                sliding_window=options.sliding_window,
            )
        if options.chunk_size is not None:
            return ChunkedLocalAttentionSpec(
                block_size=block_size,
                num_kv_heads=heads,
                head_size=head_size,
                dtype=dtype,
                chunk_size=options.chunk_size,
            )
        return FullAttentionSpec(block_size=block_size, num_kv_heads=heads, head_size=head_size, dtype=dtype)


def attention_layers(model: nn.Module) -> dict[str, Attention]:
    """All attention layers of a model by name, in layer order."""
    return {module.name: module for module in model.modules() if isinstance(module, Attention)}


def bind_kv_cache(layers: Mapping[str, Attention], caches: Mapping[str, Tensor]) -> None:
    """Give every layer its cache tensor (a view the worker owns); layers that share a cache get the same one.

    Raises KeyError if a layer has none. Binding again replaces: a dummy step before planning binds small ones.
    """
    for name, layer in layers.items():
        layer.kv_cache = caches[name]
