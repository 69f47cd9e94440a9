"""From a Hugging Face ``config.json`` and safetensors headers to ``ModelFacts``."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from octavo.checkpoint.record import Record
from octavo.checkpoint.rope_facts import extended_max_position, read_layer_ropes, read_rope
from octavo.checkpoint.safetensors_header import SafetensorsFile
from octavo.words.errors import CheckpointError, UnsupportedError
from octavo.words.model_facts import ModelFacts, PoolingFacts, RopeFacts

LAYER_TYPES = {
    "full_attention": "full",
    "sliding_attention": "sliding_window",
    "chunked_attention": "chunked_local",
}
DTYPE_NAMES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
# Keys that transformers leaves out of a nested text_config where they have its defaults.
GEMMA3_DEFAULTS: Mapping[str, object] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}


def hf_model_facts(config: Record, *, files: Sequence[SafetensorsFile] | None) -> ModelFacts:
    """Return the facts of a config; ``files`` are its weight headers, None for dummy weights.

    Raises UnsupportedError for an unknown architecture, quantisation or RoPE kind, CheckpointError for values that are
    missing or impossible.
    """
    source = _source_architecture(config)
    _refuse_quantization(config)
    text = config.record("text_config") or config
    facts = ARCHITECTURES[source](_with_special_ids(text, config), source)
    return _with_sizes(facts, files)


def _source_architecture(config: Record) -> str:
    named = config.get("architectures")
    candidates = named if isinstance(named, list) and named else [MODEL_TYPES.get(str(config.get("model_type")))]
    for name in candidates:
        if isinstance(name, str) and name in ARCHITECTURES:
            return name
    asked = ", ".join(map(str, named)) if isinstance(named, list) and named else config.get("model_type")
    code = " (the code that the checkpoint brings is never run)" if "auto_map" in config else ""
    raise UnsupportedError(f"{config.file}: architecture {asked}{code}; supported: {', '.join(ARCHITECTURES)}")


def _refuse_quantization(config: Record) -> None:
    quantization = config.record("quantization_config") or config.record("compression_config")
    if quantization is not None:
        method = quantization.get("quant_method")
        raise UnsupportedError(
            f"{config.file}: quantisation method {method!r} is not supported; supported: unquantised safetensors "
            "(float32, float16, bfloat16) and GGUF files"
        )


def _with_special_ids(text: Record, config: Record) -> Record:
    """A nested config inherits the outer token ids and tie where it has none."""
    inherited = ("bos_token_id", "eos_token_id", "tie_word_embeddings")
    outer = {key: config.get(key) for key in inherited if key in config and key not in text}
    return Record(text.file, {**text.values, **outer}) if outer else text


def token_ids(config: Record, key: str) -> tuple[int, ...]:
    """Return a token id or a list of them as a tuple; empty where the key is missing."""
    value = config.get(key)
    values = value if isinstance(value, Sequence) else [] if value is None else [value]
    if not all(type(token) is int and token >= 0 for token in values):
        raise CheckpointError(config.file, f"{key!r} is {value!r}; it must be a token id or a list of them")
    return tuple(dict.fromkeys(values))


def _decoder_facts(config: Record, architecture: str, source: str, **own: Any) -> ModelFacts:
    """Return what all decoders state alike; ``own`` adds to it and overrides."""
    num_heads = config.integer("num_attention_heads")
    num_kv_heads = config.integer("num_key_value_heads", num_heads)
    hidden_size = config.integer("hidden_size")
    head_size = config.maybe_integer("head_dim") or hidden_size // num_heads
    max_position = config.integer("max_position_embeddings")
    values: dict[str, Any] = {
        "architecture": architecture,
        "source_architecture": source,
        "num_layers": config.integer("num_hidden_layers"),
        "hidden_size": hidden_size,
        "intermediate_size": config.integer("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "vocab_size": config.integer("vocab_size"),
        "norm_eps": config.positive("rms_norm_eps", 1e-6),
        "hidden_act": config.text("hidden_act", "silu"),
        "tie_word_embeddings": config.flag("tie_word_embeddings"),
        "eos_token_ids": token_ids(config, "eos_token_id"),
        "bos_token_id": next(iter(token_ids(config, "bos_token_id")), None),
    }
    if "rope" not in own:
        rope = read_rope(config, head_size=head_size, max_position=max_position, default_theta=10_000.0)
        values |= {"rope": rope, "max_position": extended_max_position(rope, max_position)}
    facts = ModelFacts(**(values | own))
    return msgspec.structs.replace(facts, layer_types=facts.layer_types or ("full",) * facts.num_layers)


def _llama(config: Record, source: str) -> ModelFacts:
    bias = config.flag("attention_bias")
    return _decoder_facts(
        config, "llama", source, attention_bias=bias, attention_out_bias=bias, mlp_bias=config.flag("mlp_bias")
    )


def _mistral(config: Record, source: str) -> ModelFacts:
    """Mistral slides in every layer, or in none where ``sliding_window`` is null."""
    window = config.maybe_integer("sliding_window")
    layers = config.integer("num_hidden_layers")
    types = ("sliding_window" if window else "full",) * layers
    return _decoder_facts(config, "mistral", source, sliding_window=window, layer_types=types)


def _qwen2(config: Record, source: str) -> ModelFacts:
    return _decoder_facts(config, "qwen2", source, attention_bias=True, **_qwen_windows(config))


def _qwen3(config: Record, source: str) -> ModelFacts:
    bias = config.flag("attention_bias")
    head_size = config.integer("head_dim", 128)
    full = Record(config.file, {**config.values, "head_dim": head_size})
    return _decoder_facts(
        full, "qwen3", source, attention_bias=bias, attention_out_bias=bias, qk_norm=True, **_qwen_windows(config)
    )


def _qwen_windows(config: Record) -> dict[str, Any]:
    """Qwen slides from layer ``max_window_layers`` on, and only where ``use_sliding_window`` says so."""
    window = config.maybe_integer("sliding_window") if config.flag("use_sliding_window") else None
    if window is None:
        return {}
    layers, first = config.integer("num_hidden_layers"), config.integer("max_window_layers", 28, at_least=0)
    default = tuple("sliding_window" if layer >= first else "full" for layer in range(layers))
    return {"sliding_window": window, "layer_types": _layer_types(config) or default}


def _gemma3(text: Record, source: str) -> ModelFacts:
    config = Record(text.file, {**GEMMA3_DEFAULTS, **{k: v for k, v in text.values.items() if v is not None}})
    if config.flag("use_bidirectional_attention"):
        raise UnsupportedError(f"{config.file}: use_bidirectional_attention; only causal attention is supported")
    max_position, head_size = config.integer("max_position_embeddings"), config.integer("head_dim")
    rope, local_rope = read_layer_ropes(config, head_size=head_size, max_position=max_position)
    bias = config.flag("attention_bias")
    return _decoder_facts(
        config,
        "gemma3",
        source,
        rope=rope,
        local_rope=local_rope,
        max_position=max_position,  # Gemma states the extended length
        hidden_act=config.text("hidden_activation", "gelu_pytorch_tanh"),
        attention_bias=bias,
        attention_out_bias=bias,
        qk_norm=True,
        norm_weight_offset=1.0,
        embedding_scale=math.sqrt(config.integer("hidden_size")),
        attention_scale=config.positive("query_pre_attn_scalar") ** -0.5,
        attn_logit_softcap=config.maybe_number("attn_logit_softcapping"),
        final_logit_softcap=config.maybe_number("final_logit_softcapping"),
        sliding_window=config.integer("sliding_window"),
        layer_types=_layer_types(config) or periodic_layer_types(config),
    )


def _bert(config: Record, source: str) -> ModelFacts:
    """An encoder: learned positions, biases everywhere, layer norms behind the sums."""
    kind = config.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise UnsupportedError(f"{config.file}: position_embedding_type {kind!r}; supported: absolute")
    return _decoder_facts(
        config,
        "bert",
        source,
        rope=RopeFacts(rotary_dim=0),
        max_position=config.integer("max_position_embeddings"),
        num_positions=config.integer("max_position_embeddings"),
        norm_eps=config.positive("layer_norm_eps", 1e-12),
        hidden_act=config.text("hidden_act", "gelu"),
        attention_bias=True,
        attention_out_bias=True,
        mlp_bias=True,
        is_encoder=True,
        num_token_types=config.integer("type_vocab_size", 2, at_least=0),
        num_labels=_num_labels(config) if source.endswith("ForSequenceClassification") else 0,
        pooling=PoolingFacts(kind="cls"),
    )


def _roberta(config: Record, source: str) -> ModelFacts:
    """A BERT (XLM-RoBERTa too) whose positions begin behind that of the padding token's id."""
    first = config.integer("pad_token_id", 1, at_least=0) + 1
    facts = _bert(config, source)
    if first >= facts.num_positions:
        raise CheckpointError(config.file, f"has {facts.num_positions} positions, and they begin with number {first}")
    return msgspec.structs.replace(
        facts, architecture="roberta", first_position=first, max_position=facts.num_positions - first
    )


def _distilbert(config: Record, source: str) -> ModelFacts:
    """A BERT without token types, in words of its own."""
    names = {
        "hidden_size": "dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "intermediate_size": "hidden_dim",
        "hidden_act": "activation",
    }
    own = {ours: config.get(theirs) for ours, theirs in names.items() if theirs in config}
    facts = _bert(Record(config.file, {**config.values, **own, "type_vocab_size": 0}), source)
    return msgspec.structs.replace(facts, architecture="distilbert")


def _num_labels(config: Record) -> int:
    names = config.record("id2label")
    return len(names.values) if names is not None else config.integer("num_labels", 2)


def periodic_layer_types(config: Record) -> tuple[str, ...]:
    """Every ``sliding_window_pattern``-th layer (6th by default) attends to everything, the others to a window."""
    period = config.integer("sliding_window_pattern", 6)
    layers = config.integer("num_hidden_layers")
    return tuple("full" if (layer + 1) % period == 0 else "sliding_window" for layer in range(layers))


def _layer_types(config: Record) -> tuple[str, ...] | None:
    named = config.get("layer_types")
    if named is None:
        return None
    layers = config.integer("num_hidden_layers")
    if not isinstance(named, list) or len(named) != layers:
        raise CheckpointError(config.file, f"'layer_types' must be a list with one entry for each of {layers} layers")
    if unknown := [kind for kind in named if not isinstance(kind, str) or kind not in LAYER_TYPES]:
        raise UnsupportedError(f"{config.file}: layer type {unknown[0]!r}; supported: {', '.join(LAYER_TYPES)}")
    return tuple(LAYER_TYPES[kind] for kind in named)


def _with_sizes(facts: ModelFacts, files: Sequence[SafetensorsFile] | None) -> ModelFacts:
    if files is None:
        count = count_parameters(facts)
        return msgspec.structs.replace(facts, weight_format="dummy", num_parameters=count, weight_bytes=4 * count)
    tensors = [tensor for file in files for tensor in file.tensors.values()]
    by_dtype: Counter[str] = Counter()
    for tensor in tensors:
        by_dtype[tensor.dtype] += tensor.nbytes
    main = max(by_dtype, key=lambda dtype: (dtype in DTYPE_NAMES, by_dtype[dtype]), default="F32")
    return msgspec.structs.replace(
        facts,
        stored_dtype=DTYPE_NAMES.get(main, main.lower()),
        num_parameters=sum(math.prod(tensor.shape) for tensor in tensors),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
    )


def count_parameters(facts: ModelFacts) -> int:
    """Return the number of weights that a decoder with these facts has, biases and per-head norms left out."""
    query, key_value = facts.num_heads * facts.head_size, facts.num_kv_heads * facts.head_size
    attention = facts.hidden_size * (2 * query + 2 * key_value)
    norms = facts.hidden_size * (4 if facts.architecture == "gemma3" else 2)
    layer = attention + 3 * facts.hidden_size * facts.intermediate_size + norms
    embeddings = facts.vocab_size * facts.hidden_size * (1 if facts.tie_word_embeddings else 2)
    return facts.num_layers * layer + embeddings + facts.hidden_size


ARCHITECTURES: Mapping[str, Callable[[Record, str], ModelFacts]] = {
    "LlamaForCausalLM": _llama,
    "MistralForCausalLM": _mistral,
    "Qwen2ForCausalLM": _qwen2,
    "Qwen3ForCausalLM": _qwen3,
    "Gemma3ForCausalLM": _gemma3,
    "Gemma3ForConditionalGeneration": _gemma3,
    "BertModel": _bert,
    "BertForMaskedLM": _bert,
    "BertForSequenceClassification": _bert,
    "RobertaModel": _roberta,
    "RobertaForMaskedLM": _roberta,
    "RobertaForSequenceClassification": _roberta,
    "XLMRobertaModel": _roberta,
    "XLMRobertaForMaskedLM": _roberta,
    "XLMRobertaForSequenceClassification": _roberta,
    "DistilBertModel": _distilbert,
    "DistilBertForMaskedLM": _distilbert,
    "DistilBertForSequenceClassification": _distilbert,
}
MODEL_TYPES: Mapping[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma3": "Gemma3ForConditionalGeneration",
    "bert": "BertModel",
    "roberta": "RobertaModel",
    "xlm-roberta": "XLMRobertaModel",
    "distilbert": "DistilBertModel",
}
