"""The files of a drafter: a second model, or heads for a model's hidden states in the formats of the published ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.hf_facts import hf_model_facts
from octavo.checkpoint.record import Record, read_json_record
from octavo.checkpoint.resolve import Checkpoint, resolve_model
from octavo.checkpoint.safetensors_header import SafetensorsFile, read_safetensors_folder
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.words.model_facts import ModelFacts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DrafterFiles:
    """Where a drafter's weights are, and what it is."""

    checkpoint: Checkpoint
    facts: DrafterFacts


def read_drafter(
    name: str, method: str, model: ModelFacts, *, download_dir: str | Path | None = None, load_format: str = "auto"
) -> DrafterFiles:
    """Find a drafter for ``model`` and read its headers.

    Raises what ``resolve_model`` and ``read_model_facts`` do, CheckpointError for a head that lacks tensors,
    ConfigError for one that is for another model, UnsupportedError for a kind that Octavo does not have.
    """
    checkpoint = resolve_model(name, download_dir=download_dir)
    if method == "draft_model":
        stored = load_format if load_format in ("dummy", "mock") else "auto"
        network = read_model_facts(checkpoint, load_format=stored)
        return DrafterFiles(checkpoint=checkpoint, facts=DrafterFacts(network=network))
    if checkpoint.kind != "hf":
        raise UnsupportedError(f"{checkpoint.path}: the head of {method} is read from safetensors, not from GGUF")
    facts = _HEADS[method](checkpoint, read_safetensors_folder(checkpoint.path), model)
    _check_sizes(checkpoint, facts.network, model)
    return DrafterFiles(checkpoint=checkpoint, facts=facts)


def _eagle_facts(checkpoint: Checkpoint, files: Sequence[SafetensorsFile], model: ModelFacts) -> DrafterFacts:
    config, tensors = read_json_record(checkpoint.path / "config.json"), _tensors(files)
    if "d2t" in tensors or "draft_vocab_size" in config:
        raise UnsupportedError(f"{config.file}: EAGLE-3 is not supported; supported: EAGLE and EAGLE-2")
    network = hf_model_facts(Record(config.file, {**config.values, "architectures": ["LlamaForCausalLM"]}), files=files)
    if network.num_layers != 1:
        raise UnsupportedError(f"{config.file}: an EAGLE head of {network.num_layers} layers; supported is one of 1")
    has_embedding = any(name.endswith("embed_tokens.weight") for name in tensors)
    return DrafterFacts(
        network=msgspec.structs.replace(network, tie_word_embeddings=False),
        projection_bias="fc.bias" in tensors,
        has_embedding=has_embedding,
    )


def _medusa_facts(checkpoint: Checkpoint, files: Sequence[SafetensorsFile], model: ModelFacts) -> DrafterFacts:
    shapes = {name.removeprefix("medusa_head."): shape for name, shape in _tensors(files).items()}
    naming = "vllm" if any(name.startswith("blocks.") for name in shapes) else "medusa"
    layers = [name for name in shapes if name.endswith(".linear.weight") or name.startswith("blocks.")]
    heads = {name: shape for name, shape in shapes.items() if name.endswith(".weight") and name not in layers}
    if not heads or not layers:
        raise CheckpointError(checkpoint.path, "holds no Medusa heads: neither 0.0.linear.weight nor blocks.0 ...")
    vocab_size, hidden_size = next(iter(heads.values()))
    num_weights = sum(name.endswith(".weight") for name in layers)
    network = msgspec.structs.replace(
        model,
        num_layers=0,
        layer_types=(),
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_parameters=sum(math.prod(shape) for shape in shapes.values()),
        weight_format="safetensors",
        bytes_by_type={},
    )
    return DrafterFacts(
        network=network,
        num_heads=len(heads),
        num_head_layers=num_weights // len(heads),
        head_bias=any(name.endswith(".bias") for name in shapes),
        naming=naming,
    )


_HEADS: dict[str, Callable[[Checkpoint, Sequence[SafetensorsFile], ModelFacts], DrafterFacts]] = {
    "eagle": _eagle_facts,
    "medusa": _medusa_facts,
}


def _tensors(files: Sequence[SafetensorsFile]) -> Mapping[str, tuple[int, ...]]:
    return {name: tensor.shape for file in files for name, tensor in file.tensors.items()}


def _check_sizes(checkpoint: Checkpoint, network: ModelFacts, model: ModelFacts) -> None:
    theirs, ours = (network.hidden_size, network.vocab_size), (model.hidden_size, model.vocab_size)
    if theirs != ours:
        raise ConfigError(
            f"speculative_model={checkpoint.name} is for another model: its hidden size and vocabulary are {theirs[0]} "
            f"and {theirs[1]}, this model's {ours[0]} and {ours[1]}; take a head that was trained for this model"
        )


def check_vocabularies(
    texts: Sequence[str] | None, drafter_texts: Sequence[str] | None, drafter: DrafterFiles, model: ModelFacts
) -> None:
    """Raise ConfigError unless both mean the same by every token id.

    ``texts`` are the model's tokens in order of id and ``drafter_texts`` those of the drafter. Where the files of
    either have no tokenizer (None) the sizes of the vocabularies are compared.
    """
    what = f"speculative_model={drafter.checkpoint.name} cannot draft for this model: "
    advice = "; take one of the same family, or speculative_method=ngram"
    if texts is None or drafter_texts is None:
        size = drafter.facts.network.vocab_size
        if size != model.vocab_size:
            raise ConfigError(f"{what}its vocabulary has {size} tokens, the model's {model.vocab_size}{advice}")
        logger.warning("Without two tokenizers, the tokens of %s are taken for the model's", drafter.checkpoint.name)
        return
    for token_id, (ours, theirs) in enumerate(zip(texts, drafter_texts, strict=False)):
        if ours != theirs:
            raise ConfigError(f"{what}token {token_id} is {theirs!r} there and {ours!r} here{advice}")
    if len(texts) != len(drafter_texts):
        raise ConfigError(f"{what}it knows {len(drafter_texts)} tokens, the model {len(texts)}{advice}")
