"""From a checkpoint's headers to ``ModelFacts``: one entrance for every kind of file."""

from __future__ import annotations

import msgspec

from octavo.checkpoint.gguf_facts import gguf_model_facts
from octavo.checkpoint.hf_facts import count_parameters, hf_model_facts
from octavo.checkpoint.pooling_facts import read_longest_text, read_matryoshka_dimensions, read_pooling_facts
from octavo.checkpoint.record import Record, read_json_record
from octavo.checkpoint.resolve import Checkpoint
from octavo.checkpoint.safetensors_header import read_safetensors_folder
from octavo.words.errors import CheckpointError, ConfigError
from octavo.words.model_facts import ModelFacts


def read_model_facts(checkpoint: Checkpoint, *, load_format: str = "auto") -> ModelFacts:
    """Return what the model is; every header of the checkpoint is read and checked, no weight is.

    ``load_format`` is ``LoadConfig.load_format``; with "dummy" or "mock" a folder needs no weight files and
    the sizes are computed from the config. Code in a checkpoint (``auto_map``) is never run. Raises CheckpointError for
    a broken file, UnsupportedError for an architecture, RoPE kind or quantisation that Octavo does not have,
    ConfigError for a ``load_format`` that the checkpoint is not.
    """
    stored = "gguf" if checkpoint.kind == "gguf" else "safetensors"
    if load_format not in ("auto", "dummy", "mock", stored):
        raise ConfigError(f"load_format={load_format!r}, but {checkpoint.path} is {stored}; use auto or {stored}")
    dummy = load_format in ("dummy", "mock")
    if checkpoint.kind == "gguf":
        facts = gguf_model_facts(checkpoint.gguf, dummy=dummy)
    else:
        config = read_json_record(checkpoint.path / "config.json")
        facts = hf_model_facts(config, files=None if dummy else read_safetensors_folder(checkpoint.path))
        facts = _with_pooling(facts, checkpoint, config)
    _check_heads(facts, checkpoint)
    if not dummy:
        _check_plausible(facts, checkpoint)
    return facts


def _with_pooling(facts: ModelFacts, checkpoint: Checkpoint, config: Record) -> ModelFacts:
    pooling = read_pooling_facts(checkpoint.path)
    longest = read_longest_text(checkpoint.path) if pooling else None
    return msgspec.structs.replace(
        facts,
        pooling=pooling or facts.pooling,
        matryoshka_dimensions=read_matryoshka_dimensions(config),
        max_position=min(facts.max_position, longest or facts.max_position),
    )


def _check_heads(facts: ModelFacts, checkpoint: Checkpoint) -> None:
    heads, kv_heads, rotary = facts.num_heads, facts.num_kv_heads, facts.rope.rotary_dim
    problem = None
    if heads % kv_heads:
        problem = f"{heads} attention heads are not a multiple of {kv_heads} KV heads"
    elif rotary % 2 or rotary > facts.head_size:
        problem = f"{rotary} entries of a head rotate in pairs; a head has {facts.head_size}"
    if problem:
        raise CheckpointError(checkpoint.config_path or checkpoint.path, problem)


def _check_plausible(facts: ModelFacts, checkpoint: Checkpoint) -> None:
    """Refuse a config that describes a model far larger than its files, before memory is asked for it.

    Tensors are compared one by one when weights are loaded, into a model that is then already there.
    """
    described = count_parameters(facts)
    if described > 2 * facts.num_parameters:
        problem = f"describes a model of {described} parameters, but the files hold {facts.num_parameters}"
        raise CheckpointError(checkpoint.config_path or checkpoint.path, problem)
