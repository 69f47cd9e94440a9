"""How weights are held, and how much memory that takes."""

from __future__ import annotations

from octavo.checkpoint.adapter import projection_shapes
from octavo.config.engine_config import EngineConfig
from octavo.plan.native_ops import NATIVE_ADAPTER_LANES, NATIVE_BLOCKS, OTHER_BLOCKS
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts

_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_FLOAT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
_BYTES_PER_NUMBER = {"int8": 1.0, "int4": 20 / 32}


def quantization_of(config: EngineConfig, facts: ModelFacts, kernels: str) -> tuple[str, str]:
    """How weights are held (none, gguf, int8, int4), and why. Raises ConfigError for what cannot be had."""
    asked, is_gguf = config.model.quantization, facts.weight_format == "gguf"
    if asked == "gguf" and not is_gguf:
        raise ConfigError(
            "quantization=gguf cannot be had: the weights are not a GGUF file; use int8, int4 or none, or leave it out"
        )
    if asked == "none" or (asked is None and not is_gguf):
        return "none", "as asked" if asked else "the weights are not a GGUF file"
    if kernels != "native":
        if asked is not None:
            raise ConfigError(
                f"quantization={asked} cannot be had: it needs native kernels, and those here are {kernels}; use none"
            )
        return "none", f"block formats need native kernels, and those here are {kernels}: dequantised at load"
    return (asked, "as asked") if asked in ("int8", "int4") else ("gguf", _own_formats(facts))


def weight_bytes_of(facts: ModelFacts, dtype: str, quantization: str) -> int:
    """Bytes in memory, padding aside."""
    if quantization == "none":
        return facts.num_parameters * _ITEM_BYTES[dtype]
    if quantization == "gguf":
        return sum(_packed_bytes(kind, stored, dtype) for kind, stored in facts.bytes_by_type.items())
    # Embedding and head have eight bits in either.
    vocab = facts.vocab_size * facts.hidden_size * (1 if facts.tie_word_embeddings else 2)
    return int(vocab + (facts.num_parameters - vocab) * _BYTES_PER_NUMBER[quantization])


def adapter_bytes_of(facts: ModelFacts, rank: int, dtype: str, kernels: str) -> int:
    """Bytes in memory of a LoRA adapter of this rank that changes every projection; native ones are padded."""
    lanes = NATIVE_ADAPTER_LANES if kernels == "native" else 1
    numbers = sum(
        into * _padded(rank, lanes) + _padded(out, lanes) * rank for out, into in projection_shapes(facts).values()
    )
    return numbers * _ITEM_BYTES[dtype]


def _padded(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple


def _own_formats(facts: ModelFacts) -> str:
    others = [kind for kind in facts.bytes_by_type if kind in OTHER_BLOCKS]
    quantised = f"; {', '.join(others)}, for which there are no kernels, as Q8_0" if others else ""
    return f"the file's own formats: {', '.join(facts.bytes_by_type)}{quantised}"


def _packed_bytes(kind: str, stored: int, dtype: str) -> int:
    if kind in _FLOAT_BYTES:
        return stored // _FLOAT_BYTES[kind] * _ITEM_BYTES[dtype]
    in_file, packed = (NATIVE_BLOCKS | OTHER_BLOCKS).get(kind, (1, 1))
    return stored // in_file * packed
