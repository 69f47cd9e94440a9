"""What a model's layers will ask of the KV cache, from its facts alone: for estimates and simulation.

The model's own layers have the last word once it is built; a test holds the two together.
"""

from __future__ import annotations

from typing import Any

from octavo.plan.plan import Plan
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.kv_cache_spec import (
    AnyKVCacheSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    SlidingWindowSpec,
    windows_as_full,
)
from octavo.words.model_facts import ModelFacts

PLACEHOLDER_BLOCK_SIZE = 16
"""Tokens per block where the Plan leaves the choice to the attention backends."""


def kv_cache_specs(facts: ModelFacts, plan: Plan) -> dict[str, AnyKVCacheSpec]:
    """One spec per attention layer, by layer name, in layer order."""
    kinds = facts.layer_types or ("full",) * facts.num_layers
    return {f"layers.{index}.attention": _spec(kind, facts, plan) for index, kind in enumerate(kinds)}


def drafter_kv_cache_specs(plan: Plan, drafter: DrafterFacts) -> dict[str, AnyKVCacheSpec]:
    """The same of a drafter's layers, which keep every token; heads without attention ask nothing."""
    network = drafter.network
    return windows_as_full(kv_cache_specs(network, plan)) if network.num_layers else {}


def _spec(kind: str, facts: ModelFacts, plan: Plan) -> AnyKVCacheSpec:
    shape: dict[str, Any] = {
        "block_size": plan.block_size or PLACEHOLDER_BLOCK_SIZE,
        "num_kv_heads": facts.num_kv_heads,
        "head_size": facts.head_size,
        "dtype": plan.kv_cache_dtype,
    }
    if kind == "sliding_window" and facts.sliding_window is not None:
        return SlidingWindowSpec(sliding_window=facts.sliding_window, **shape)
    if kind == "chunked_local" and facts.chunk_size is not None:
        return ChunkedLocalAttentionSpec(chunk_size=facts.chunk_size, **shape)
    return FullAttentionSpec(**shape)
