"""The KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class CacheConfig:
    """What the user asked about the KV cache."""

    block_size: Annotated[int | None, Option("Tokens per KV block (default: 32 on a CPU).", at_least=1)] = None
    enable_prefix_caching: Annotated[bool, Option("Reuse KV blocks of equal prompt prefixes.")] = True
    kv_cache_dtype: Annotated[
        str,
        Option(
            "Type of cached keys and values; auto = the model's dtype, but bfloat16 where float32 is neither asked for "
            "nor the checkpoint's own; int8 = with a scale per token and head.",
            choices=("auto", "float32", "bfloat16", "int8"),
        ),
    ] = "auto"
    kv_cache_memory_bytes: Annotated[
        int | None,
        Option("Exact KV memory in bytes (suffixes K M G KiB MiB GiB).", at_least=1),
    ] = None
    gpu_memory_utilization: Annotated[
        float | None,
        Option(
            "Share of the device's memory the engine may use (default on a CPU: enough for a few long requests).",
            at_least=0.01,
            at_most=1.0,
        ),
    ] = None
    num_gpu_blocks_override: Annotated[
        int | None,
        Option("Exact number of KV blocks, whatever was profiled; skips the check that a request fits.", at_least=2),
    ] = None
    disable_hybrid_kv_cache_manager: Annotated[bool, Option("Serve sliding-window layers as full-attention ones.")] = (
        False
    )
