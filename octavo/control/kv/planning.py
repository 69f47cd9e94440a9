"""From what layers ask and what memory is there, to a KVCacheConfig.

In order: merge the ranks' specs, drop layers without memory of their own, settle block sizes, make pages equal,
group layers, count blocks, check (or fit) the longest request, resolve the block sizes of scheduler and hashes.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import msgspec

from octavo.control.kv.capacity import longest_length_that_fits, max_blocks_per_request
from octavo.words.errors import ConfigError, InsufficientMemoryError
from octavo.words.kv_cache_spec import (
    AnyKVCacheSpec,
    AttentionSpec,
    CrossAttentionSpec,
    EncoderOnlyAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheSpec,
    KVCacheTensor,
    MambaSpec,
    SinkFullAttentionSpec,
    cdiv,
    following_cache,
    following_specs,
    windows_as_full,
)

logger = logging.getLogger(__name__)

Specs = dict[str, AnyKVCacheSpec]
"""Layer name -> what the layer asks."""


@dataclass(frozen=True, kw_only=True)
class KVCacheLimits:
    """What was decided before memory was measured; lengths in tokens.

    ``max_model_len`` None means: fit it, up to ``model_max_len``. ``max_num_batched_tokens`` is the most tokens one
    request has in flight. ``preferred_block_sizes`` are those that suit every attention backend, the best first.
    ``num_blocks_override`` counts the null block.
    """

    max_model_len: int | None
    model_max_len: int
    max_num_batched_tokens: int
    block_size: int | None = None
    preferred_block_sizes: Sequence[int] = ()
    num_blocks_override: int | None = None
    enable_caching: bool = True
    disable_hybrid: bool = False
    context_parallel: int = 1

    @property
    def longest_wanted(self) -> int:
        return self.model_max_len if self.max_model_len is None else self.max_model_len


@dataclass(frozen=True, kw_only=True)
class RankNeeds:
    """What one worker's layers ask, and the memory it has for them; ``drafter_specs`` are a drafter's layers."""

    specs: Mapping[str, AnyKVCacheSpec]
    available_bytes: int
    shared_layers: Mapping[str, str] = field(default_factory=dict)
    drafter_specs: Mapping[str, AnyKVCacheSpec] = field(default_factory=dict)


class BlockSizes(NamedTuple):
    """In tokens. ``cache``: least of the cacheable groups; ``scheduler``: common multiple; ``hash``: common divisor."""

    cache: int
    scheduler: int
    hash: int


def plan_kv_cache(rank: RankNeeds, limits: KVCacheLimits) -> KVCacheConfig:
    """Plan the cache of a single rank; see ``plan_kv_caches``."""
    return plan_kv_caches([rank], limits)[0]


def plan_kv_caches(ranks: Sequence[RankNeeds], limits: KVCacheLimits) -> list[KVCacheConfig]:
    """Return one config per rank: the same groups and number of blocks everywhere, each with the rank's own layers.

    Raises InsufficientMemoryError if one request of ``max_model_len`` does not fit (or, when it is to be fitted, not
    even one token), unless the number of blocks is given: then it only warns. Raises ConfigError for layers that
    contradict each other.
    """
    specs = settle_block_sizes(merge_ranks(ranks), limits)
    groups = group_layers(make_pages_equal(windows_as_full(specs) if limits.disable_hybrid else specs))
    projected = [_project(groups, rank) for rank in ranks]
    followed = _followed_group(groups) if any(rank.drafter_specs for rank in ranks) else 0
    if groups:
        block_bytes = [
            _bytes_per_block(own, rank, groups[followed]) for own, rank in zip(projected, ranks, strict=True)
        ]
        num_blocks, max_model_len = _count_blocks(groups, block_bytes, ranks, limits)
    else:
        num_blocks, max_model_len = 1, limits.longest_wanted
    sizes = resolve_block_sizes(
        [group.spec for group in groups],
        enable_caching=limits.enable_caching,
        context_parallel=limits.context_parallel,
    )
    return [
        KVCacheConfig(
            num_blocks=num_blocks,
            groups=own_groups,
            tensors=_lay_out_tensors(own_groups, num_blocks),
            scheduler_block_size=sizes.scheduler,
            hash_block_size=sizes.hash,
            max_model_len=max_model_len,
            shared_layers=_resolve_shared(rank),
            drafter=following_cache(
                rank.drafter_specs, groups[followed], num_blocks=num_blocks, max_model_len=max_model_len
            )
            if rank.drafter_specs
            else None,
            drafter_follows=followed,
        )
        for own_groups, rank in zip(projected, ranks, strict=True)
    ]


def kv_bytes_per_token(specs: Mapping[str, AnyKVCacheSpec], shared_layers: Mapping[str, str] | None = None) -> int:
    """Bytes that one more token costs while every layer still sees it; state that does not grow is not counted."""
    grows_not = (CrossAttentionSpec, EncoderOnlyAttentionSpec)
    return sum(
        spec.natural_page_bytes // spec.block_size
        for name, spec in specs.items()
        if name not in (shared_layers or {}) and isinstance(spec, AttentionSpec) and not isinstance(spec, grows_not)
    )


def max_concurrency(config: KVCacheConfig, *, max_num_batched_tokens: int) -> float:
    """How many requests of ``max_model_len`` the cache holds at once; infinite if requests hold nothing."""
    specs = [group.spec for group in config.groups]
    blocks = max_blocks_per_request(specs, config.max_model_len, max_num_batched_tokens)
    return config.num_usable_blocks / blocks if blocks else math.inf


def merge_ranks(ranks: Sequence[RankNeeds]) -> Specs:
    """Return all layers that need memory. Raises ConfigError if two ranks differ about a layer."""
    merged: Specs = {}
    for rank in ranks:
        shared = _resolve_shared(rank)
        for name, spec in rank.specs.items():
            if name in shared or isinstance(spec, EncoderOnlyAttentionSpec):
                continue
            if merged.setdefault(name, spec) != spec:
                raise ConfigError(
                    f"ranks disagree about the KV cache of layer {name!r}: {merged[name]} and {spec}; "
                    "every rank must load the same model with the same options"
                )
    return merged


def settle_block_sizes(specs: Specs, limits: KVCacheLimits) -> Specs:
    """Replace the layers' placeholder: what the user asked, else the backends' first choice, else the placeholder."""
    block_size = limits.block_size or next(iter(limits.preferred_block_sizes), None)
    if block_size is not None:
        specs = {name: _with_block_size(spec, block_size) for name, spec in specs.items()}
    for name, spec in specs.items():
        if isinstance(spec, SinkFullAttentionSpec) and spec.sink_len % spec.block_size:
            raise ConfigError(
                f"layer {name!r} has {spec.sink_len} sink tokens, which is no multiple of the block size "
                f"{spec.block_size}; choose a block size that divides it"
            )
    return specs


def make_pages_equal(specs: Specs) -> Specs:
    """Make one block cost the same bytes in every layer, since all groups draw from one pool.

    Small pages get more tokens per block if that comes out even; otherwise they are padded. Attention pages first
    grow until a recurrent state fits one.
    """
    specs = _grow_to_hold_state(specs)
    largest = max((spec.page_bytes for spec in specs.values()), default=0)
    equal: Specs = {}
    for name, spec in specs.items():
        ratio, rest = divmod(largest, spec.page_bytes)
        if ratio == 1 and not rest:
            equal[name] = spec
        elif not rest and isinstance(spec, AttentionSpec):
            equal[name] = _with_block_size(spec, spec.block_size * ratio)
        else:
            logger.warning(
                "layer %s: KV pages padded from %d to %d bytes to match other layers", name, spec.page_bytes, largest
            )
            equal[name] = msgspec.structs.replace(spec, page_size_padded=largest)
    return equal


def group_layers(specs: Specs) -> tuple[KVCacheGroup, ...]:
    """Put layers with equal specs into groups of equal size; one block of any group is one page in each of its layers.

    The size is that of the rarest kind of layer, or of the commonest if that is less than half as many again: a few
    unused pages then cost less than twice the groups. Layers are dealt round robin, so that every pipeline stage
    gets its share of each group.
    """
    buckets: dict[AnyKVCacheSpec, list[str]] = {}
    for name, spec in specs.items():
        buckets.setdefault(spec, []).append(name)
    if not buckets:
        return ()
    fewest, most = (pick(len(names) for names in buckets.values()) for pick in (min, max))
    group_size = most if 2 * most < 3 * fewest else fewest
    groups = []
    for spec, names in buckets.items():
        num_groups = cdiv(len(names), group_size)
        groups += [KVCacheGroup(layer_names=tuple(names[i::num_groups]), spec=spec) for i in range(num_groups)]
    num_unused = group_size * len(groups) - len(specs)
    if num_unused:
        logger.warning(
            "KV cache: %d groups of %d layers for %d layers; %.0f %% of the cache stays unused",
            len(groups), group_size, len(specs), 100 * num_unused / (group_size * len(groups)),
        )  # fmt: skip
    return tuple(groups)


def resolve_block_sizes(specs: Sequence[KVCacheSpec], *, enable_caching: bool, context_parallel: int = 1) -> BlockSizes:
    """Return the block sizes seen from outside the groups; ``specs`` has one entry per group.

    Under context parallelism a block is spread over the ranks, so it covers that many times more tokens.
    """
    sizes = [spec.block_size * context_parallel for spec in specs] or [1]
    cacheable = [spec.block_size * context_parallel for spec in specs if spec.is_prefix_cacheable]
    scheduler = math.lcm(*sizes)
    return BlockSizes(
        cache=min(cacheable or sizes),
        scheduler=scheduler,
        hash=math.gcd(*cacheable) if enable_caching and cacheable else scheduler,
    )


def _with_block_size(spec: AnyKVCacheSpec, block_size: int) -> AnyKVCacheSpec:
    return cast(AnyKVCacheSpec, spec.with_block_size(block_size))


def _resolve_shared(rank: RankNeeds) -> dict[str, str]:
    """Map each layer that reuses a cache to the layer that owns it, through layers that reuse themselves."""
    owners = {}
    for name, owner in rank.shared_layers.items():
        seen = {name}
        while owner in rank.shared_layers and owner not in seen:
            seen.add(owner)
            owner = rank.shared_layers[owner]
        if owner in seen or owner not in rank.specs:
            raise ConfigError(
                f"layer {name!r} shares the KV cache of {owner!r}, which has none of its own on this rank"
            )
        owners[name] = owner
    return owners


def _grow_to_hold_state(specs: Specs) -> Specs:
    state_bytes = max((spec.page_bytes for spec in specs.values() if isinstance(spec, MambaSpec)), default=0)
    page_bytes = max((spec.page_bytes for spec in specs.values() if isinstance(spec, AttentionSpec)), default=0)
    if not page_bytes or state_bytes <= page_bytes:
        return specs
    factor = cdiv(state_bytes, page_bytes)
    return {name: _with_block_size(spec, spec.block_size * factor) for name, spec in specs.items()}


def _project(groups: Sequence[KVCacheGroup], rank: RankNeeds) -> tuple[KVCacheGroup, ...]:
    """Keep a rank's own layers; groups stay in place even if empty, since block tables are numbered by group."""
    return tuple(
        msgspec.structs.replace(group, layer_names=tuple(name for name in group.layer_names if name in rank.specs))
        for group in groups
    )


def _followed_group(groups: Sequence[KVCacheGroup]) -> int:
    """The group whose blocks a drafter's layers take as theirs: one that keeps every token."""
    for index, group in enumerate(groups):
        if isinstance(group.spec, FullAttentionSpec):
            return index
    raise ConfigError(
        "a drafter with keys and values cannot be had beside this model: none of its layers keeps every token; "
        "take speculative_method=ngram, or disable_hybrid_kv_cache_manager"
    )


def _bytes_per_block(groups: Sequence[KVCacheGroup], rank: RankNeeds, followed: KVCacheGroup) -> int:
    own = max(len(group.layer_names) for group in groups) * groups[0].spec.page_bytes
    return own + sum(spec.page_bytes for spec in following_specs(rank.drafter_specs, followed).values())


def _lay_out_tensors(groups: Sequence[KVCacheGroup], num_blocks: int) -> tuple[KVCacheTensor, ...]:
    """One tensor for the first layers of all groups, one for the second ones, and so on."""
    tensors = []
    for index in range(max((len(group.layer_names) for group in groups), default=0)):
        names = tuple(group.layer_names[index] for group in groups if index < len(group.layer_names))
        tensors.append(KVCacheTensor(size_bytes=num_blocks * groups[0].spec.page_bytes, layer_names=names))
    return tuple(tensors)


def _count_blocks(
    groups: Sequence[KVCacheGroup],
    block_bytes_of_ranks: Sequence[int],
    ranks: Sequence[RankNeeds],
    limits: KVCacheLimits,
) -> tuple[int, int]:
    """Return the number of blocks of the rank that has fewest, and the longest request to allow."""
    # A pipeline stage may have no layer with a cache: it limits nothing.
    num_blocks, block_bytes, available = min(
        (rank.available_bytes // size, size, rank.available_bytes)
        for size, rank in zip(block_bytes_of_ranks, ranks, strict=True)
        if size
    )
    if limits.num_blocks_override is not None:
        logger.info("KV cache: %d blocks as asked, instead of %d", limits.num_blocks_override, num_blocks)
        num_blocks = limits.num_blocks_override
        available = num_blocks * block_bytes
    specs = [group.spec for group in groups]
    # One block is kept back for the null block.
    longest = longest_length_that_fits(
        specs, num_blocks - 1, at_most=limits.longest_wanted, max_tokens_in_flight=limits.max_num_batched_tokens
    )
    if longest == limits.longest_wanted:
        return num_blocks, longest
    if limits.max_model_len is None and longest > 0:
        logger.info("max_model_len fitted to %d of %d tokens", longest, limits.model_max_len)
        return num_blocks, longest
    if limits.num_blocks_override is not None and limits.max_model_len is not None:
        logger.warning(
            "%d KV blocks hold at most %d tokens of a request, less than max_model_len=%d: longer ones are refused",
            num_blocks, longest, limits.max_model_len,
        )  # fmt: skip
        return num_blocks, limits.max_model_len
    wanted = limits.max_model_len or 1
    needed = (max_blocks_per_request(specs, wanted, limits.max_num_batched_tokens) + 1) * block_bytes
    raise _too_little_memory(wanted, longest, needed, available)


def _too_little_memory(wanted: int, longest: int, needed: int, available: int) -> InsufficientMemoryError:
    advice = f"lower max_model_len to {longest} (or auto), or" if longest else "not even one token fits;"
    return InsufficientMemoryError(
        f"a request of {wanted} tokens needs {_in_words(needed)} of KV cache, {_in_words(available)} are available; "
        f"the longest length that fits is {longest} tokens: {advice} give the cache more memory "
        "(kv_cache_memory_bytes or gpu_memory_utilization)",
        needed_bytes=needed,
        available_bytes=available,
    )


def _in_words(num_bytes: int) -> str:
    return f"{num_bytes} bytes ({num_bytes / 2**20:.1f} MiB)"
