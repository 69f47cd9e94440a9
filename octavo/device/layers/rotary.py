"""Rotary tables: from a checkpoint's ``RopeFacts`` to one table of angles per engine.

Every kind is a choice of inverse frequencies and of one factor on cosines and sines. Kinds whose frequencies depend
on the length of the sequence (dynamic, longrope) are fixed by ``max_model_len``, so that a token's keys never change
while its request grows. Angles are computed in float32, as the models were trained and as Transformers does.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from octavo.device.ops.rope import RopeTable, rope
from octavo.words.errors import UnsupportedError
from octavo.words.model_facts import RopeFacts

_MEAN_OVER_POSITIONS = 4096


def rope_table(rope: RopeFacts, max_model_len: int, max_position: int) -> RopeTable:
    """Compute the angles of positions 0 .. max_model_len - 1.

    ``max_position`` is the checkpoint's limit; it stands in for ``original_max_position`` where that is not stated.
    Raises UnsupportedError for a kind that is not known.
    """
    if rope.kind not in _KINDS:
        raise UnsupportedError(f"rotary embedding of kind {rope.kind!r} is not one of {', '.join(_KINDS)}")
    original = rope.original_max_position or max_position
    frequencies = _KINDS[rope.kind](rope, original, max_model_len)
    angles = torch.arange(max_model_len, dtype=torch.float32).unsqueeze(1) * frequencies
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1) * attention_factor(rope, original)
    return RopeTable(cos_sin, rope.interleaved)


def mean_rotation(heads: Tensor, table: RopeTable) -> Tensor:
    """The mean of heads [num_heads, head_size] as they are at the first positions, float32.

    Entries that turn slowly stay as they are, of fast ones little is left.
    """
    positions = torch.arange(min(len(table.cos_sin), _MEAN_OVER_POSITIONS))
    return rope(heads.expand(len(positions), *heads.shape), positions, table).mean(dim=0)


def attention_factor(rope: RopeFacts, original_max_position: int) -> float:
    """Return the factor on cosines and sines: stated, or as the papers of yarn and longrope derive it."""
    if rope.kind not in ("yarn", "longrope"):
        return 1.0
    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.kind == "yarn":
        if rope.mscale and rope.mscale_all_dim:
            return _yarn_factor(rope.factor, rope.mscale) / _yarn_factor(rope.factor, rope.mscale_all_dim)
        return _yarn_factor(rope.factor, 1.0)
    return math.sqrt(1 + math.log(rope.factor) / math.log(original_max_position)) if rope.factor > 1 else 1.0


def _yarn_factor(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _periods(theta: float, rotary_dim: int) -> Tensor:
    """theta^(2i / rotary_dim) for i < rotary_dim / 2: the inverse of the frequencies without scaling."""
    return theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _default(rope: RopeFacts, original: int, max_model_len: int) -> Tensor:
    return 1.0 / _periods(rope.theta, rope.rotary_dim)


def _linear(rope: RopeFacts, original: int, max_model_len: int) -> Tensor:
    return _default(rope, original, max_model_len) / rope.factor


def _dynamic(rope: RopeFacts, original: int, max_model_len: int) -> Tensor:
    """A larger theta for an engine longer than the model was trained for (dynamic NTK)."""
    stretch = rope.factor * max(max_model_len, original) / original - (rope.factor - 1)
    theta = rope.theta * stretch ** (rope.rotary_dim / (rope.rotary_dim - 2))
    return 1.0 / _periods(theta, rope.rotary_dim)


def _llama3(rope: RopeFacts, original: int, max_model_len: int) -> Tensor:
    """Slow frequencies divided by ``factor``, fast ones kept, those between blended by their wavelength."""
    low, high = rope.low_freq_factor or 1.0, rope.high_freq_factor or 4.0
    frequencies = _default(rope, original, max_model_len)
    wavelengths = 2 * math.pi / frequencies
    kept = ((original / wavelengths - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / rope.factor + kept * frequencies


def _yarn(rope: RopeFacts, original: int, max_model_len: int) -> Tensor:
    """Dimensions of few rotations divided by ``factor``, those of many kept, a ramp between (Peng et al., 2023)."""
    periods = _periods(rope.theta, rope.rotary_dim)
    low, high = (
        rope.rotary_dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(rope.theta))
        for rotations in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, rope.rotary_dim - 1)
    width = high - low if high != low else 0.001
    divided = ((torch.arange(rope.rotary_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return divided / (rope.factor * periods) + (1 - divided) / periods


def _longrope(rope: RopeFacts, original: int, max_model_len: int) -> Tensor:
    """Stated factors per dimension: the long ones if the engine is longer than the training length."""
    factors = rope.long_factor if max_model_len > original else rope.short_factor
    if factors is None or len(factors) != rope.rotary_dim // 2:
        raise UnsupportedError(
            f"longrope needs {rope.rotary_dim // 2} long and short factors; the checkpoint has others"
        )
    return 1.0 / (torch.tensor(factors, dtype=torch.float32) * _periods(rope.theta, rope.rotary_dim))


_KINDS: dict[str, Callable[[RopeFacts, int, int], Tensor]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
