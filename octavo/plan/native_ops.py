"""What the planner knows about the ops of the device plane, which it cannot import; a test compares the two."""

from __future__ import annotations

MODEL_OPS = frozenset(
    {
        "add_rms_norm",
        "embedding",
        "gate_up_activation",
        "linear",
        "lm_head",
        "paged_attention",
        "qkv_rope_write",
        "rms_norm",
    }
)
"""The ops that models call."""

NATIVE_OPS = MODEL_OPS
"""Those with a native kernel."""

NATIVE_DTYPES = ("float32", "bfloat16")
"""Types of weights and activations that native kernels take."""

NATIVE_HEAD_SIZE_MULTIPLE = 8
"""Head sizes that native attention takes."""

_AVX2 = frozenset({"avx2", "fma", "f16c"})

NATIVE_ISAS: dict[str, frozenset[str]] = {
    "generic": frozenset(),
    "avx2": _AVX2,
    "avx512": _AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16", "avx512_vnni"},
}
"""Instruction sets that native kernels are compiled for, lowest first, and what a CPU must have for each."""
