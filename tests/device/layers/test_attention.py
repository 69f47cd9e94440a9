"""What attention layers ask of the cache, and how they are given it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from octavo.device.attention.reference import ReferenceAttention
from octavo.device.layers.attention import Attention, attention_layers, bind_kv_cache
from octavo.device.ops.paged_attention import AttentionOptions
from octavo.words.kv_cache_spec import ChunkedLocalAttentionSpec, FullAttentionSpec, SlidingWindowSpec


def layer(name: str, **features: Any) -> Attention:
    options = AttentionOptions(num_heads=6, num_kv_heads=2, head_size=16, scale=0.25, **features)
    return Attention(name, options, ReferenceAttention(), torch.bfloat16)


def test_a_layer_states_its_spec() -> None:
    common: dict[str, Any] = {"block_size": 32, "num_kv_heads": 2, "head_size": 16, "dtype": "bfloat16"}
    assert layer("a").kv_cache_spec() == FullAttentionSpec(**common)
    assert layer("a", sliding_window=7).kv_cache_spec() == SlidingWindowSpec(**common, sliding_window=7)
    assert layer("a", chunk_size=7).kv_cache_spec() == ChunkedLocalAttentionSpec(**common, chunk_size=7)


def test_layers_are_found_in_order_and_bound_by_name() -> None:
    model = nn.ModuleList([layer("layers.0"), layer("layers.1")])
    layers = attention_layers(model)
    assert list(layers) == ["layers.0", "layers.1"]
    caches = {name: torch.zeros(2, 4, 8, 2, 16) for name in layers}
    bind_kv_cache(layers, caches)
    assert all(layers[name].kv_cache is cache for name, cache in caches.items())


def test_a_layer_without_a_cache_is_an_error() -> None:
    with pytest.raises(KeyError, match=r"layers\.0"):
        bind_kv_cache({"layers.0": layer("layers.0")}, {})
