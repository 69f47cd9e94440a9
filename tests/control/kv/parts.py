"""Real parts in small sizes for the KV tests: specs, configs, requests, and the way a scheduler uses the manager."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.control.kv.block_hash import make_block_hasher
from octavo.control.kv.manager import KVCacheManager
from octavo.control.kv.planning import resolve_block_sizes
from octavo.control.request import Request
from octavo.words.kv_cache_spec import (
    AnyKVCacheSpec,
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    SlidingWindowSpec,
)
from octavo.words.messages import EngineCoreRequest, ResolvedSampling
from octavo.words.sampling_params import SamplingParams


def full(block_size: int = 16, num_kv_heads: int = 1) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, num_kv_heads=num_kv_heads, head_size=8, dtype="float32")


def window(sliding_window: int, block_size: int = 16, num_kv_heads: int = 1) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_size=8,
        dtype="float32",
        sliding_window=sliding_window,
    )


def chunked(chunk_size: int, block_size: int = 16) -> ChunkedLocalAttentionSpec:
    return ChunkedLocalAttentionSpec(
        block_size=block_size, num_kv_heads=1, head_size=8, dtype="float32", chunk_size=chunk_size
    )


def config_of(num_blocks: int, *specs: AnyKVCacheSpec, max_model_len: int = 8192) -> KVCacheConfig:
    sizes = resolve_block_sizes(specs, enable_caching=True)
    return KVCacheConfig(
        num_blocks=num_blocks,
        groups=tuple(KVCacheGroup(layer_names=(f"layer{i}",), spec=spec) for i, spec in enumerate(specs)),
        tensors=(),
        scheduler_block_size=sizes.scheduler,
        hash_block_size=sizes.hash,
        max_model_len=max_model_len,
    )


def manager_of(
    num_blocks: int,
    *specs: AnyKVCacheSpec,
    enable_caching: bool = True,
    max_num_batched_tokens: int = 8192,
    max_model_len: int = 8192,
) -> KVCacheManager:
    return KVCacheManager(
        config_of(num_blocks, *specs, max_model_len=max_model_len),
        enable_caching=enable_caching,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def request_of(
    token_ids: Iterable[int],
    request_id: str = "a",
    *,
    hash_block_size: int | None = 16,
    cache_salt: str | None = None,
    params: SamplingParams | None = None,
) -> Request:
    message = EngineCoreRequest(
        request_id=request_id,
        prompt_token_ids=list(token_ids),
        sampling=ResolvedSampling(params=params or SamplingParams(), seed=0, max_tokens=16, num_text_tokens=1 << 20),
        arrival_time=0.0,
        cache_salt=cache_salt,
    )
    return Request(message, make_block_hasher(hash_block_size) if hash_block_size is not None else None)


def admit(manager: KVCacheManager, request: Request, num_tokens: int | None = None) -> int:
    """Schedule a request's first step, all of its input if ``num_tokens`` is None; returns the tokens hit."""
    hit, num_hit_tokens = manager.get_computed_blocks(request)
    num_new = num_tokens if num_tokens is not None else request.num_tokens - num_hit_tokens
    assert manager.allocate_slots(request, num_new, hit=hit, num_hit_tokens=num_hit_tokens) is not None
    request.num_computed_tokens = num_hit_tokens + num_new
    return num_hit_tokens


def compute(manager: KVCacheManager, request: Request, num_tokens: int) -> None:
    """Schedule the next ``num_tokens`` tokens of a running request."""
    assert manager.allocate_slots(request, num_tokens) is not None
    request.num_computed_tokens += num_tokens


def decode(manager: KVCacheManager, request: Request, token_ids: Sequence[int]) -> None:
    """Append sampled tokens, one step each: the token is known, then its keys and values are computed."""
    for token_id in token_ids:
        request.append_output_tokens([token_id])
        compute(manager, request, 1)
