"""Made-up steps: they go the way of every step, to warm up or to measure what a step costs."""

from __future__ import annotations

import math
from collections.abc import Mapping

from octavo.words.kv_cache_spec import (
    AnyKVCacheSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheTensor,
    cdiv,
    following_cache,
)
from octavo.words.messages import NewRequestData, ResolvedSampling, SchedulerOutput
from octavo.words.sampling_params import SamplingParams

# The costly way through the sampler.
SAMPLING = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.1, logprobs=1)


def dummy_step(
    config: KVCacheConfig,
    num_requests: int,
    num_tokens: int,
    vocab_size: int,
    *,
    num_drafts: int = 0,
    num_guesses: int = 0,
) -> SchedulerOutput:
    """A step in which ``num_requests`` new requests compute ``num_tokens`` prompt tokens each.

    Behind them each has ``num_drafts`` drafts to verify, and ``num_guesses`` are to be guessed for the next step.
    Blocks are taken round about from block 1 on; what was in them is lost.
    """
    sampling = ResolvedSampling(params=SAMPLING, seed=0, max_tokens=1, num_text_tokens=vocab_size)
    request_ids = [f"dummy-{i}" for i in range(num_requests)]
    new_requests = [
        NewRequestData(
            request_id=request_id,
            prompt_token_ids=[i % vocab_size for i in range(num_tokens)],
            output_token_ids=[],
            sampling=sampling,
            block_ids=_block_ids(config, ordinal, num_tokens + num_drafts + num_guesses),
            num_computed_tokens=0,
        )
        for ordinal, request_id in enumerate(request_ids)
    ]
    return SchedulerOutput(
        step_id=0,
        new_requests=new_requests,
        num_scheduled_tokens=dict.fromkeys(request_ids, num_tokens + num_drafts),
        total_num_scheduled_tokens=num_requests * (num_tokens + num_drafts),
        draft_token_ids={request_id: [0] * num_drafts for request_id in request_ids if num_drafts},
        num_drafts={request_id: num_guesses for request_id in request_ids if num_guesses},
    )


def dummy_end(step: SchedulerOutput) -> SchedulerOutput:
    """The step without tokens that ends the requests of a dummy step."""
    return SchedulerOutput(step_id=0, finished_request_ids=list(step.num_scheduled_tokens))


def dummy_kv_cache_config(
    specs: Mapping[str, AnyKVCacheSpec],
    shared_layers: Mapping[str, str],
    num_tokens: int,
    max_model_len: int,
    *,
    drafter_specs: Mapping[str, AnyKVCacheSpec] | None = None,
) -> KVCacheConfig:
    """A small cache, for steps of ``num_tokens`` before the real one is planned: each layer has its own memory."""
    by_spec: dict[AnyKVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        if name not in shared_layers:
            by_spec.setdefault(spec, []).append(name)
    sizes = [spec.block_size for spec in by_spec]
    num_blocks = 1 + sum(cdiv(num_tokens, size) for size in sizes)
    groups = tuple(KVCacheGroup(layer_names=tuple(names), spec=spec) for spec, names in by_spec.items())
    followed = next((index for index, group in enumerate(groups) if isinstance(group.spec, FullAttentionSpec)), None)
    drafter = None
    if drafter_specs and followed is not None:
        drafter = following_cache(drafter_specs, groups[followed], num_blocks=num_blocks, max_model_len=max_model_len)
    return KVCacheConfig(
        num_blocks=num_blocks,
        groups=groups,
        tensors=tuple(
            KVCacheTensor(size_bytes=num_blocks * spec.page_bytes, layer_names=(name,))
            for spec, names in by_spec.items()
            for name in names
        ),
        scheduler_block_size=math.lcm(*sizes),
        hash_block_size=math.gcd(*sizes),
        max_model_len=max_model_len,
        shared_layers=dict(shared_layers),
        drafter=drafter,
        drafter_follows=followed or 0,
    )


def _block_ids(config: KVCacheConfig, ordinal: int, num_tokens: int) -> tuple[list[int], ...]:
    counts = [cdiv(num_tokens, group.spec.block_size) for group in config.groups]
    first = ordinal * sum(counts)
    return tuple(_round_about(config, first + sum(counts[:g]), count) for g, count in enumerate(counts))


def _round_about(config: KVCacheConfig, first: int, count: int) -> list[int]:
    return [1 + i % config.num_usable_blocks for i in range(first, first + count)]
