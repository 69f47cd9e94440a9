"""What the planner knows about the ops of the device plane, which it cannot import; a test compares the two."""

from __future__ import annotations

MODEL_OPS = frozenset(
    {
        "add_rms_norm",
        "embedding",
        "gate_up_activation",
        "linear",
        "lm_head",
        "lm_head_best",
        "paged_attention",
        "qkv_rope_write",
        "rms_norm",
    }
)
"""The ops that models call."""

CACHE_OPS = frozenset({"paged_attention", "qkv_rope_write"})
"""Those that know how the KV cache is laid out: both come from the attention backend's side."""

ENCODER_OPS = frozenset({"add_layer_norm", "embedding_layer_norm", "encoder_attention", "linear", "linear_activation"})
"""Those that encoders call."""

ADAPTER_OPS = frozenset({"lora"})
"""Those that layers with adapters call."""

NATIVE_OPS = MODEL_OPS | ENCODER_OPS | ADAPTER_OPS
"""Those with a native kernel."""

NATIVE_DTYPES = ("float32", "bfloat16")
"""Types of weights and activations that native kernels take."""

NATIVE_CACHE_DTYPES = ("float32", "bfloat16", "int8")
"""Types of cached keys and values that native attention takes."""

NATIVE_BLOCKS: dict[str, tuple[int, int]] = {
    "Q8_0": (34, 34),
    "Q4_0": (18, 18),
    "Q4_1": (20, 20),
    "Q5_0": (22, 22),
    "Q5_1": (24, 24),
    "Q4_K": (144, 148),
    "Q5_K": (176, 180),
    "Q6_K": (210, 210),
}
"""Bytes of a block of each GGUF type with native kernels: in a file, and packed."""

OTHER_BLOCKS: dict[str, tuple[int, int]] = {"IQ4_NL": (18, 34), "Q2_K": (84, 272), "Q3_K": (110, 272)}
"""Types without: packed as Q8_0."""

NATIVE_ADAPTER_LANES = 8
"""Ranks, and results, of a LoRA adapter's projection are filled up to a multiple of it."""

NATIVE_HEAD_SIZE_MULTIPLE = 8
NATIVE_BLOCK_SIZE_MULTIPLE = 16
"""Head sizes and block sizes that native attention takes."""

_AVX2 = frozenset({"avx2", "fma", "f16c"})
_AVX512 = _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"}

NATIVE_ISAS: dict[str, frozenset[str]] = {
    "generic": frozenset(),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "amx": _AVX512 | {"amx_tile", "amx_bf16", "amx_int8"},
}
"""Instruction sets that native kernels are compiled for, lowest first, and what a CPU must have for each."""
