"""Rotary embedding facts from a Hugging Face config, in its old form and its new one.

Old: ``rope_theta`` and ``rope_scaling``. New: one ``rope_parameters`` with both, or one such object per layer type.
"""

from __future__ import annotations

from octavo.checkpoint.record import Record
from octavo.words.errors import UnsupportedError
from octavo.words.model_facts import RopeFacts

ROPE_KINDS = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
ALIASES = {"su": "longrope"}
# Kinds whose factor lengthens the context: max_position_embeddings is what it was before.
EXTENDED_BY_FACTOR = ("linear", "dynamic", "yarn")


def read_rope(config: Record, *, head_size: int, max_position: int, default_theta: float) -> RopeFacts:
    """Return the rotary embedding of a model that has one kind for all layers."""
    parameters = config.record("rope_parameters") or config.record("rope_scaling") or Record(config.file, {})
    return _facts(config, parameters, head_size, max_position, config.positive("rope_theta", default_theta))


def read_layer_ropes(config: Record, *, head_size: int, max_position: int) -> tuple[RopeFacts, RopeFacts]:
    """Return (full attention, sliding window) rotary embeddings of a model that has two (Gemma 3).

    In the old form scaling belongs to the full layers only, and ``rope_local_base_freq`` to the sliding ones.
    """
    new = config.record("rope_parameters") or Record(config.file, {})
    full = new.record("full_attention") or config.record("rope_scaling") or Record(config.file, {})
    local = new.record("sliding_attention") or Record(config.file, {})
    theta = config.positive("rope_theta", 1_000_000.0)
    local_theta = config.positive("rope_local_base_freq", 10_000.0)
    return (
        _facts(config, full, head_size, max_position, theta),
        _facts(config, local, head_size, max_position, local_theta),
    )


def extended_max_position(rope: RopeFacts, max_position: int) -> int:
    """Return the longest context: the original one times the factor, once, for kinds that extend it by a factor."""
    if rope.kind not in EXTENDED_BY_FACTOR:
        return max_position
    return int((rope.original_max_position or max_position) * rope.factor)


def _facts(config: Record, parameters: Record, head_size: int, max_position: int, theta: float) -> RopeFacts:
    kind = _kind(parameters)
    partial = parameters.positive("partial_rotary_factor", config.positive("partial_rotary_factor", 1.0))
    original = config.maybe_integer("original_max_position_embeddings") or parameters.maybe_integer(
        "original_max_position_embeddings"
    )
    return RopeFacts(
        kind=kind,
        theta=parameters.positive("rope_theta", theta),
        rotary_dim=int(head_size * partial),
        factor=_factor(parameters, kind, original, max_position),
        original_max_position=None if kind == "default" else _original(kind, original, max_position),
        low_freq_factor=parameters.positive("low_freq_factor") if kind == "llama3" else None,
        high_freq_factor=parameters.positive("high_freq_factor") if kind == "llama3" else None,
        beta_fast=parameters.positive("beta_fast", 32.0),
        beta_slow=parameters.positive("beta_slow", 1.0),
        attention_factor=parameters.maybe_number("attention_factor"),
        mscale=parameters.maybe_number("mscale"),
        mscale_all_dim=parameters.maybe_number("mscale_all_dim"),
        truncate=parameters.flag("truncate", True),
        short_factor=_divisors(parameters, "short_factor", kind, int(head_size * partial)),
        long_factor=_divisors(parameters, "long_factor", kind, int(head_size * partial)),
    )


def _kind(parameters: Record) -> str:
    named = parameters.maybe_text("rope_type") or parameters.text("type", "default")
    kind = ALIASES.get(named, named)
    if kind not in ROPE_KINDS:
        raise UnsupportedError(f"{parameters.file}: RoPE type {named!r}; supported: {', '.join(ROPE_KINDS)}")
    return kind


def _factor(parameters: Record, kind: str, original: int | None, max_position: int) -> float:
    if kind == "default":
        return 1.0
    if kind == "longrope" or (kind == "yarn" and original):
        return parameters.positive("factor", max_position / (original or max_position))
    return parameters.positive("factor")


def _original(kind: str, original: int | None, max_position: int) -> int:
    """Dynamic scaling starts where the config's own length ends, whatever length it says was the original."""
    return max_position if kind == "dynamic" else original or max_position


def _divisors(parameters: Record, key: str, kind: str, rotary_dim: int) -> tuple[float, ...] | None:
    if kind != "longrope":
        return None
    divisors = parameters.numbers(key)
    if divisors is None or len(divisors) != rotary_dim // 2:
        raise UnsupportedError(f"{parameters.file}: longrope needs {key!r} with {rotary_dim // 2} numbers")
    return divisors
