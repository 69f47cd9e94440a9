"""Reads LoRA adapters in PEFT's format, and believes none of their words.

A folder with ``adapter_config.json`` and ``adapter_model.safetensors``, which holds two matrices for each projection:
``base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight`` [rank, in_features], and
``lora_B`` [out_features, rank].
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from octavo.checkpoint.record import Record, read_json_record
from octavo.checkpoint.safetensors_header import SafetensorsTensor, read_safetensors_header
from octavo.words.errors import CheckpointError, UnsupportedError
from octavo.words.model_facts import ModelFacts

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
EXPONENTS: Mapping[str, tuple[str, int]] = {
    "F32": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
}
"""Of each type that is read: its bits as integers, and those of the exponent, all of them set in NaN and infinity."""

_WRAPPER = "base_model.model."
_MODEL_PREFIXES = (("model.language_model.", "model."), ("language_model.model.", "model."))
"""How models that wrap a text model name it."""

_REFUSED = {
    "modules_to_save": "whole modules of its own (modules_to_save)",
    "use_dora": "DoRA (use_dora)",
    "lora_bias": "biases (lora_bias)",
    "fan_in_fan_out": "transposed weights (fan_in_fan_out)",
    "layer_replication": "replicated layers (layer_replication)",
    "trainable_token_indices": "tokens of its own (trainable_token_indices)",
    "target_parameters": "parameters that are no layers (target_parameters)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
}

Shapes = Mapping[str, tuple[int, int]]
"""(out_features, in_features) of each projection that an adapter may change, by the name Hugging Face gives it."""


@dataclass(frozen=True, slots=True)
class LowRankTensors:
    """The update of one projection, scale * B A."""

    a: SafetensorsTensor
    b: SafetensorsTensor
    scale: float


@dataclass(frozen=True, slots=True)
class AdapterHeader:
    """A checked adapter: ``updates`` by projection, whose tensors lie in ``file``."""

    file: Path
    updates: Mapping[str, LowRankTensors]


def projection_shapes(facts: ModelFacts) -> dict[str, tuple[int, int]]:
    """The linear layers of a decoder."""
    hidden, inner = facts.hidden_size, facts.intermediate_size
    heads, kv_heads = (number * facts.head_size for number in (facts.num_heads, facts.num_kv_heads))
    shapes = {
        "self_attn.q_proj": (heads, hidden),
        "self_attn.k_proj": (kv_heads, hidden),
        "self_attn.v_proj": (kv_heads, hidden),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    return {f"model.layers.{i}.{name}": shape for i in range(facts.num_layers) for name, shape in shapes.items()}


def read_adapter(folder: Path, shapes: Shapes, max_rank: int) -> AdapterHeader:
    """Check an adapter for a model of these projections; no weight is read.

    Raises CheckpointError, naming the file and the tensor, for what is broken or does not fit the model, and
    UnsupportedError for kinds of adapters that are not served.
    """
    config = read_json_record(folder / CONFIG_FILE)
    _check_kind(config)
    if not (folder / WEIGHTS_FILE).exists() and any(folder.glob("adapter_model.*")):
        raise UnsupportedError(f"{folder}: pickled weights can run code; save the adapter as {WEIGHTS_FILE}")
    header = read_safetensors_header(folder / WEIGHTS_FILE)
    pairs: dict[str, dict[str, SafetensorsTensor]] = {}
    for tensor in header.tensors.values():
        projection, side = _place(header.path, tensor, shapes)
        pairs.setdefault(projection, {})[side] = tensor
    if not pairs:
        raise CheckpointError(header.path, "has no tensors: the adapter would change nothing")
    scaling = _Scaling(config)
    updates = {name: _update(header.path, name, pair, shapes[name], scaling, max_rank) for name, pair in pairs.items()}
    return AdapterHeader(header.path, updates)


def check_finite(adapter: AdapterHeader) -> None:
    """Read all weights; CheckpointError names the first tensor that holds NaN or infinity, and so would all answers."""
    for update in adapter.updates.values():
        for tensor in (update.a, update.b):
            dtype, exponent = EXPONENTS[tensor.dtype]
            bits = np.fromfile(adapter.file, dtype, math.prod(tensor.shape), offset=tensor.offset)
            if ((bits & exponent) == exponent).any():
                raise CheckpointError(adapter.file, "holds NaN or infinity; train or save it again", tensor=tensor.name)


def adapter_hash(folder: Path) -> str:
    """Hex SHA-256 of the adapter's files; CheckpointError where one cannot be read."""
    total = hashlib.sha256()
    for name in (CONFIG_FILE, WEIGHTS_FILE):
        try:
            with (folder / name).open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        except OSError as error:
            raise CheckpointError(folder / name, f"cannot be read: {error.strerror}") from error
    return total.hexdigest()


def _check_kind(config: Record) -> None:
    kind = config.text("peft_type", "LORA")
    if kind.upper() != "LORA":
        raise UnsupportedError(f"{config.file}: peft_type {kind!r:.40} is not served; only LORA is")
    bias = config.text("bias", "none")
    if bias != "none":
        raise UnsupportedError(f"{config.file}: bias {bias!r:.40} is not served; train the adapter with bias none")
    for key, what in _REFUSED.items():
        if config.get(key):
            raise UnsupportedError(f"{config.file}: an adapter with {what} is not served; only low-rank updates are")


def _place(file: Path, tensor: SafetensorsTensor, shapes: Shapes) -> tuple[str, str]:
    """(projection, "A" or "B") of a tensor."""
    name = tensor.name.removeprefix(_WRAPPER)
    for found, instead in _MODEL_PREFIXES:
        if name.startswith(found):
            name = instead + name[len(found) :]
    for side in ("A", "B"):
        projection = name.removesuffix(f".lora_{side}.weight")
        if projection != name and projection in shapes:
            _check_matrix(file, tensor)
            return projection, side
    raise CheckpointError(file, _why_not(name, shapes), tensor=tensor.name)


def _why_not(name: str, shapes: Shapes) -> str:
    kinds = ", ".join(dict.fromkeys(projection.rsplit(".", 1)[1] for projection in shapes))
    if "lora_magnitude_vector" in name:
        return "DoRA is not served; only low-rank updates are"
    if "embed" in name or "lm_head" in name:
        return f"adapters of embeddings and of the output head are not served; only those of {kinds} are"
    return f"matches nothing that an adapter of this model may change: lora_A.weight and lora_B.weight of {kinds}"


def _check_matrix(file: Path, tensor: SafetensorsTensor) -> None:
    if tensor.dtype not in EXPONENTS or len(tensor.shape) != 2:
        problem = f"is {tensor.dtype} of shape {list(tensor.shape)}; a matrix of {', '.join(EXPONENTS)} is needed"
        raise CheckpointError(file, problem, tensor=tensor.name)


def _update(
    file: Path,
    name: str,
    pair: Mapping[str, SafetensorsTensor],
    shape: tuple[int, int],
    scaling: _Scaling,
    max_rank: int,
) -> LowRankTensors:
    for side, other in (("A", "B"), ("B", "A")):
        if side not in pair:
            raise CheckpointError(file, f"has no lora_{side}.weight beside it", tensor=pair[other].name)
    a, b = pair["A"], pair["B"]
    rank = scaling.rank(name)
    if rank > max_rank:
        raise CheckpointError(file, f"has rank {rank}, and max_lora_rank is {max_rank}: raise it", tensor=a.name)
    for tensor, expected in ((a, (rank, shape[1])), (b, (shape[0], rank))):
        if tensor.shape != expected:
            problem = f"has shape {list(tensor.shape)}; this model and rank {rank} need {list(expected)}"
            raise CheckpointError(file, problem, tensor=tensor.name)
    return LowRankTensors(a, b, scaling.scale(name))


class _Scaling:
    """Rank and scale of each projection, as the config says."""

    def __init__(self, config: Record) -> None:
        self._rank = config.integer("r")
        self._alpha = config.number("lora_alpha", 8.0)
        self._is_rank_stabilized = config.flag("use_rslora")
        self._ranks = _pattern(config, "rank_pattern")
        self._alphas = _pattern(config, "alpha_pattern")

    def rank(self, projection: str) -> int:
        ranks = self._ranks
        return self._rank if ranks is None else ranks.integer(_key_of(projection, ranks.values), self._rank)

    def scale(self, projection: str) -> float:
        """alpha / rank, or with rsLoRA (Kalajdzievski, 2023) alpha / sqrt(rank)."""
        alphas, rank = self._alphas, self.rank(projection)
        alpha = self._alpha if alphas is None else alphas.number(_key_of(projection, alphas.values), self._alpha)
        return alpha / (math.sqrt(rank) if self._is_rank_stabilized else rank)


def _pattern(config: Record, key: str) -> Record | None:
    """A mapping by names of modules. PEFT takes regular expressions, which may take for ever; names are read alone."""
    found = config.record(key)
    for name in found.values if found is not None else ():
        if not all(part.isidentifier() or part.isdecimal() for part in name.removeprefix("^").split(".")):
            raise UnsupportedError(f"{config.file}: {key} has {name!r:.60}, which is no name of a module")
    return found


def _key_of(projection: str, names: Iterable[str]) -> str:
    """The first name that the projection's ends with; "" for none."""
    for name in names:
        bare = name.removeprefix("^")
        if projection == bare or (bare == name and projection.endswith(f".{name}")):
            return name
    return ""
