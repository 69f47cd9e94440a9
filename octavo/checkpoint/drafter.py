"""The files of a drafter."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import Checkpoint, resolve_model
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DrafterFiles:
    """Where a drafter's weights are, and what it is."""

    checkpoint: Checkpoint
    facts: ModelFacts


def read_drafter(name: str, *, download_dir: str | Path | None = None, load_format: str = "auto") -> DrafterFiles:
    """Find a draft model and read its headers. Raises what ``resolve_model`` and ``read_model_facts`` do."""
    checkpoint = resolve_model(name, download_dir=download_dir)
    stored = load_format if load_format in ("dummy", "mock") else "auto"
    return DrafterFiles(checkpoint=checkpoint, facts=read_model_facts(checkpoint, load_format=stored))


def check_vocabularies(
    texts: Sequence[str], drafter_texts: Sequence[str] | None, drafter: DrafterFiles, model: ModelFacts
) -> None:
    """Raise ConfigError unless both mean the same by every token id.

    ``texts`` are the model's tokens in order of id; ``drafter_texts`` those of the drafter, None where its files have
    no tokenizer: then the sizes of the vocabularies are compared.
    """
    what = f"speculative_model={drafter.checkpoint.name} cannot draft for this model: "
    advice = "; take one of the same family, or speculative_method=ngram"
    if drafter_texts is None:
        if drafter.facts.vocab_size != model.vocab_size:
            sizes = f"its vocabulary has {drafter.facts.vocab_size} tokens, the model's {model.vocab_size}"
            raise ConfigError(what + sizes + advice)
        logger.warning("%s has no tokenizer of its own: its tokens are taken for the model's", drafter.checkpoint.name)
        return
    for token_id, (ours, theirs) in enumerate(zip(texts, drafter_texts, strict=False)):
        if ours != theirs:
            raise ConfigError(f"{what}token {token_id} is {theirs!r} there and {ours!r} here{advice}")
    if len(texts) != len(drafter_texts):
        raise ConfigError(f"{what}it knows {len(drafter_texts)} tokens, the model {len(texts)}{advice}")
