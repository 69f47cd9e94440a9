"""The vocabulary: every op, and for every backend where its kernel is ("module:function").

The reference is plain torch and fixes what the op means, roundings included; other backends are held to it by one
parametrised test. A backend without a kernel for an op is served by the reference.
"""

from __future__ import annotations

_PACKAGE = "octavo.device.ops"

OPS: dict[str, dict[str, str]] = {
    name: {"reference": f"{_PACKAGE}.{name}:{name}"}
    for name in (
        "add_layer_norm",
        "add_rms_norm",
        "embedding",
        "embedding_layer_norm",
        "encoder_attention",
        "gate_up_activation",
        "linear",
        "linear_activation",
        "lm_head",
        "lm_head_best",
        "lora",
        "paged_attention",
        "qkv_rope_write",
        "rms_norm",
        "rope",
    )
}

_NATIVE: dict[str, str] = {
    "add_layer_norm": "layer_norm:add_layer_norm",
    "add_rms_norm": "add_rms_norm:add_rms_norm",
    "embedding": "embedding:embedding",
    "embedding_layer_norm": "layer_norm:embedding_layer_norm",
    "encoder_attention": "encoder_attention:encoder_attention",
    "gate_up_activation": "gate_up_activation:gate_up_activation",
    "linear": "linear:linear",
    "linear_activation": "linear_activation:linear_activation",
    "lm_head": "linear:lm_head",
    "lm_head_best": "linear:lm_head_best",
    "lora": "lora:lora",
    "paged_attention": "paged_attention:paged_attention",
    "qkv_rope_write": "qkv_rope_write:qkv_rope_write",
    "rms_norm": "rms_norm:rms_norm",
}
"""Ops with a native kernel: an entry is a function that takes a NativeContext and returns the op."""

for _name, _function in _NATIVE.items():
    OPS[_name]["native"] = f"{_PACKAGE}.native.{_function}"
