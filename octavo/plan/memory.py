"""Memory: whether the weights fit, and how much of what they leave is for keys and values."""

from __future__ import annotations

import msgspec

from octavo.config.engine_config import EngineConfig
from octavo.plan.decision import Decision
from octavo.plan.steps import DEFAULT_BLOCK_SIZE, DEFAULT_MAX_NUM_BATCHED_TOKENS
from octavo.util.byte_size import format_byte_size
from octavo.words.device_caps import DeviceCaps
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.errors import InsufficientMemoryError
from octavo.words.kv_cache_spec import FullAttentionSpec
from octavo.words.model_facts import ModelFacts

# KV memory when nothing is asked: room for a few long requests, so that the engine starts fast.
DEFAULT_NUM_LONG_REQUESTS = 4
MIN_DEFAULT_KV_BYTES = 256 << 20


def memory_beside_weights(
    caps: DeviceCaps, weight_bytes: int, adapter_bytes: int, dtype: str, quantization: str
) -> int:
    """What weights and adapters leave. Raises InsufficientMemoryError where they do not fit."""
    needed = weight_bytes + adapter_bytes
    if needed < caps.available_bytes:
        return caps.available_bytes - needed
    smaller = "; dtype=bfloat16 halves it" if (dtype, quantization) == ("float32", "none") else ""
    form = dtype if quantization == "none" else quantization
    adapters, fewer = "", ""
    if adapter_bytes:
        adapters = f" and {format_byte_size(adapter_bytes)} for LoRA adapters"
        fewer = "lower max_cpu_loras or max_lora_rank, "
    raise InsufficientMemoryError(
        f"the weights need {format_byte_size(weight_bytes)} in {form}{adapters}, and "
        f"{format_byte_size(caps.available_bytes)} of memory are available to this process (the least of free memory, "
        f"cgroup and ulimit){smaller}; {fewer}free memory, raise the limit, or take a smaller model",
        needed_bytes=needed,
        available_bytes=caps.available_bytes,
    )


def decide_memory_fraction(config: EngineConfig) -> Decision[float | None]:
    """The share of the memory that the engine may take, where that was asked for in place of bytes."""
    asked = config.cache.gpu_memory_utilization
    if asked is None:
        return Decision(None, "not asked: KV memory is given in bytes")
    if config.cache.kv_cache_memory_bytes is not None:
        return Decision(None, "kv_cache_memory_bytes is exact and goes before gpu_memory_utilization")
    return Decision(asked, "as asked")


def decide_kv_cache_bytes(
    config: EngineConfig, facts: ModelFacts, drafter: DrafterFacts | None, left: int, kv_dtype: str
) -> Decision[int | None]:
    """Bytes for keys and values, of those ``left`` beside weights and adapters; None: profiling tells."""
    if facts.is_encoder:
        return Decision(0, "an encoder keeps nothing")
    if config.cache.kv_cache_memory_bytes is not None:
        return Decision(config.cache.kv_cache_memory_bytes, "as asked")
    if config.cache.gpu_memory_utilization is not None:
        return Decision(None, "learnt from profiling: the share gpu_memory_utilization asks for, less what is used")
    longest = _longest_request_bytes(config, facts, kv_dtype)
    if drafter is not None:
        longest += _longest_request_bytes(config, _without_windows(drafter.network, facts.max_position), kv_dtype)
    wanted = DEFAULT_NUM_LONG_REQUESTS * longest
    most = left // 2
    what = "the weights and adapters" if config.lora.enable_lora else "the weights"
    if max(wanted, MIN_DEFAULT_KV_BYTES) > most:
        return Decision(most, f"default: half of the {format_byte_size(left)} that {what} leave")
    if wanted < MIN_DEFAULT_KV_BYTES:
        return Decision(MIN_DEFAULT_KV_BYTES, f"default: at least {format_byte_size(MIN_DEFAULT_KV_BYTES)}")
    return Decision(wanted, f"default: {DEFAULT_NUM_LONG_REQUESTS} requests of the longest length")


def _longest_request_bytes(config: EngineConfig, facts: ModelFacts, kv_dtype: str) -> int:
    """KV bytes of one request of the greatest length, rounded up to blocks; a windowed layer keeps its window only."""
    asked = config.model.max_model_len
    length = asked if isinstance(asked, int) else facts.max_position
    block = config.cache.block_size or DEFAULT_BLOCK_SIZE
    shape = {"num_kv_heads": facts.num_kv_heads, "head_size": facts.head_size}
    token = FullAttentionSpec(block_size=1, dtype=kv_dtype, **shape)
    tokens = sum(min(length, _kept_tokens(facts, kind, length)) + block for kind in _layer_types(facts))
    return tokens * token.natural_page_bytes


def _without_windows(facts: ModelFacts, max_position: int) -> ModelFacts:
    """A drafter keeps every token that its model keeps."""
    return msgspec.structs.replace(facts, layer_types=(), max_position=max_position)


def _layer_types(facts: ModelFacts) -> tuple[str, ...]:
    return facts.layer_types or ("full",) * facts.num_layers


def _kept_tokens(facts: ModelFacts, kind: str, length: int) -> int:
    """Tokens a layer holds at most; while a chunk is computed, a window reaches back from its first token."""
    reach = {"sliding_window": facts.sliding_window, "chunked_local": facts.chunk_size}.get(kind)
    return length if reach is None else reach + DEFAULT_MAX_NUM_BATCHED_TOKENS
