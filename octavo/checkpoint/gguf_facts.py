"""From the header of a GGUF file to ``ModelFacts``."""

from __future__ import annotations

import math
import struct
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from octavo.checkpoint.gguf_header import GGUFArray, GGUFFile
from octavo.checkpoint.record import Record
from octavo.checkpoint.rope_facts import extended_max_position
from octavo.words.errors import CheckpointError, UnsupportedError
from octavo.words.model_facts import ModelFacts, RopeFacts

FLOAT_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
GEMMA3_PERIOD = 6
GEMMA3_27B_LAYERS = 62


def gguf_model_facts(file: GGUFFile, *, dummy: bool = False) -> ModelFacts:
    """Return the facts of a GGUF file; UnsupportedError for an architecture or RoPE kind Octavo does not have."""
    source = Record(file.path, file.metadata).text("general.architecture")
    if source not in ARCHITECTURES:
        raise UnsupportedError(f"{file.path}: GGUF architecture {source!r}; supported: {', '.join(ARCHITECTURES)}")
    if Record(file.path, file.metadata).integer("split.count", 1, at_least=0) > 1:
        raise UnsupportedError(f"{file.path}: one part of a split GGUF model; merge the parts into one file first")
    config = Record(file.path, file.metadata, prefix=f"{source}.")
    if config.integer("expert_count", 0, at_least=0):
        raise UnsupportedError(f"{file.path}: a mixture of experts in GGUF is not supported")
    facts = ARCHITECTURES[source](file, config, source)
    return msgspec.structs.replace(facts, weight_format="dummy") if dummy else facts


def gguf_token_id(file: GGUFFile, key: str) -> int | None:
    """Return ``tokenizer.ggml.<key>_token_id``, None where the file has none."""
    return Record(file.path, file.metadata, prefix="tokenizer.ggml.").maybe_integer(f"{key}_token_id", at_least=0)


def gguf_eos_token_ids(file: GGUFFile) -> tuple[int, ...]:
    """Return the ids that end a text: end of sequence, end of turn, end of message, as far as the file names them."""
    found = (gguf_token_id(file, key) for key in ("eos", "eot", "eom"))
    return tuple(dict.fromkeys(token for token in found if token is not None))


def _decoder_facts(file: GGUFFile, config: Record, architecture: str, **own: Any) -> ModelFacts:
    num_heads = _per_model(config, "attention.head_count")
    hidden_size = config.integer("embedding_length")
    head_size = config.integer("attention.key_length", hidden_size // num_heads)
    if config.integer("attention.value_length", head_size) != head_size:
        raise UnsupportedError(f"{file.path}: heads whose keys and values differ in size are not supported")
    num_layers = config.integer("block_count")
    rope = _rope(file, config, head_size)
    values: dict[str, Any] = {
        "num_kv_heads": _per_model(config, "attention.head_count_kv", num_heads),
        "intermediate_size": _per_model(config, "feed_forward_length"),
        "vocab_size": _vocab_size(file),
        "max_position": extended_max_position(rope, config.integer("context_length")),
        "norm_eps": config.positive("attention.layer_norm_rms_epsilon"),
        "rope": rope,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "attention_out_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in file.tensors,
        "layer_types": ("full",) * num_layers,
        "eos_token_ids": gguf_eos_token_ids(file),
        "bos_token_id": gguf_token_id(file, "bos"),
    }
    return ModelFacts(
        architecture=architecture,
        source_architecture=config.prefix.rstrip("."),
        num_layers=num_layers,
        hidden_size=hidden_size,
        num_heads=num_heads,
        head_size=head_size,
        weight_format="gguf",
        stored_dtype=_main_type(_bytes_by_type(file)),
        num_parameters=sum(math.prod(tensor.shape) for tensor in file.tensors.values()),
        weight_bytes=sum(tensor.nbytes for tensor in file.tensors.values()),
        bytes_by_type=_bytes_by_type(file),
        **(values | own),
    )


def _llama(file: GGUFFile, config: Record, source: str) -> ModelFacts:
    """Llama and Mistral share this GGUF architecture; a file that states a window means it for every layer."""
    window = config.maybe_integer("attention.sliding_window")
    if window is None:
        return _decoder_facts(file, config, "llama")
    types = ("sliding_window",) * config.integer("block_count")
    return _decoder_facts(file, config, "mistral", sliding_window=window, layer_types=types)


def _qwen2(file: GGUFFile, config: Record, source: str) -> ModelFacts:
    return _decoder_facts(file, config, "qwen2")


def _qwen3(file: GGUFFile, config: Record, source: str) -> ModelFacts:
    return _decoder_facts(file, config, "qwen3", qk_norm=True)


def _gemma3(file: GGUFFile, config: Record, source: str) -> ModelFacts:
    num_layers, hidden_size = config.integer("block_count"), config.integer("embedding_length")
    head_size = config.integer("attention.key_length")
    # The file has no query_pre_attn_scalar; it equals the head size in every Gemma 3 but the 27B one.
    num_heads = _per_model(config, "attention.head_count")
    query_scalar = hidden_size // num_heads if num_layers == GEMMA3_27B_LAYERS else head_size
    return _decoder_facts(
        file,
        config,
        "gemma3",
        max_position=config.integer("context_length"),  # Gemma states the extended length
        local_rope=RopeFacts(theta=config.positive("rope.freq_base_swa", 10_000.0), rotary_dim=head_size),
        rope=_rope(file, config, head_size, default_theta=1_000_000.0),
        hidden_act="gelu_pytorch_tanh",
        qk_norm=True,
        embedding_scale=math.sqrt(hidden_size),
        attention_scale=query_scalar**-0.5,
        final_logit_softcap=config.maybe_number("final_logit_softcapping"),
        sliding_window=config.integer("attention.sliding_window"),
        layer_types=tuple(
            "full" if (layer + 1) % GEMMA3_PERIOD == 0 else "sliding_window" for layer in range(num_layers)
        ),
    )


def _per_model(config: Record, key: str, default: int | None = None) -> int:
    """Return an integer that some architectures state per layer; here all layers must agree."""
    value = config.get(key)
    if isinstance(value, GGUFArray):
        if len(set(value)) != 1:
            raise UnsupportedError(f"{config.file}: {config.prefix + key!r} differs between layers; not supported")
        return Record(config.file, {key: value[0]}).integer(key)
    return config.integer(key, default)


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError(file.path, "is missing", tensor="token_embd.weight")
    return embedding.shape[0]


def _bytes_by_type(file: GGUFFile) -> dict[str, int]:
    stored: Counter[str] = Counter()
    for tensor in file.tensors.values():
        stored[tensor.type] += tensor.nbytes
    return dict(stored.most_common())


def _main_type(bytes_by_type: Mapping[str, int]) -> str:
    main = next(iter(bytes_by_type))
    return FLOAT_NAMES.get(main, main.lower())


def _rope(file: GGUFFile, config: Record, head_size: int, *, default_theta: float = 10_000.0) -> RopeFacts:
    kind = config.text("rope.scaling.type", "none")
    theta = config.positive("rope.freq_base", default_theta)
    rotary_dim = config.integer("rope.dimension_count", head_size)
    if kind not in ("none", "linear", "yarn", "longrope"):
        raise UnsupportedError(f"{file.path}: GGUF RoPE scaling {kind!r}; supported: none, linear, yarn, longrope")
    if divisors := _rope_divisors(file, config, rotary_dim):
        return RopeFacts(kind="longrope", theta=theta, rotary_dim=rotary_dim, **divisors)
    if kind in ("none", "longrope"):
        return RopeFacts(theta=theta, rotary_dim=rotary_dim)
    factor = config.positive("rope.scaling.factor")
    return RopeFacts(
        kind=kind,
        theta=theta,
        rotary_dim=rotary_dim,
        factor=factor,
        original_max_position=config.integer("rope.scaling.original_context_length", config.integer("context_length")),
        beta_fast=config.positive("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=config.positive("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(config, factor) if kind == "yarn" else None,
    )


def _yarn_attention_factor(config: Record, factor: float) -> float | None:
    """GGUF's ``attn_factor`` multiplies YaRN's own temperature; None leaves the latter as it is."""
    multiplier = config.maybe_number("rope.scaling.attn_factor")
    return None if multiplier is None else multiplier * (0.1 * math.log(factor) + 1.0)


def _rope_divisors(file: GGUFFile, config: Record, rotary_dim: int) -> dict[str, Any] | None:
    """Return per-frequency divisors stored as tensors, in the terms of longrope; None where the file has none.

    ``rope_freqs.weight`` is llama3 scaling worked out at conversion: one table for every length and no temperature,
    which is longrope with equal factors.
    """
    if "rope_freqs.weight" in file.tensors:
        divisors = _float_tensor(file, "rope_freqs.weight", rotary_dim // 2)
        length = config.integer("context_length")
        return {
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
            "original_max_position": length,
        }
    if "rope_factors_long.weight" not in file.tensors:
        return None
    original = config.integer("rope.scaling.original_context_length")
    return {
        "short_factor": _float_tensor(file, "rope_factors_short.weight", rotary_dim // 2),
        "long_factor": _float_tensor(file, "rope_factors_long.weight", rotary_dim // 2),
        "attention_factor": config.maybe_number("rope.scaling.attn_factor"),
        "original_max_position": original,
        "factor": config.integer("context_length") / original,
    }


def _float_tensor(file: GGUFFile, name: str, count: int) -> tuple[float, ...]:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.type != "F32" or tensor.shape != (count,):
        raise CheckpointError(file.path, f"must be {count} F32 values", tensor=name)
    return struct.unpack(f"<{count}f", file.read(tensor))


ARCHITECTURES: Mapping[str, Callable[[GGUFFile, Record, str], ModelFacts]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
