"""How a folder with the files of sentence-transformers pools: modules.json and what it names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from octavo.checkpoint.record import Record, read_json, read_json_record
from octavo.words.errors import CheckpointError, UnsupportedError
from octavo.words.model_facts import PoolingFacts

MODULES = "modules.json"
PROMPTS = "config_sentence_transformers.json"
KINDS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "last",
}
SHORT_KINDS = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
"""As newer versions of sentence-transformers name them, under ``pooling_mode``."""


def read_pooling_facts(folder: Path) -> PoolingFacts | None:
    """Return how the folder's model pools, None where it does not say.

    Raises UnsupportedError for a way of pooling, or a module behind it, that Octavo does not have, CheckpointError for
    files that contradict themselves.
    """
    path = folder / MODULES
    if not path.is_file():
        return None
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, Mapping) for module in modules):
        raise CheckpointError(path, "must be a list of modules")
    by_kind = {str(module.get("type")).rsplit(".", 1)[-1]: str(module.get("path", "")) for module in modules}
    if unknown := set(by_kind) - {"Transformer", "Pooling", "Normalize"}:
        raise UnsupportedError(f"{path}: module {sorted(unknown)[0]}; supported: Transformer, Pooling, Normalize")
    if "Pooling" not in by_kind:
        return None
    config = read_json_record(folder / by_kind["Pooling"] / "config.json")
    prompt = _default_prompt(folder)
    if prompt and not config.flag("include_prompt", True):
        raise UnsupportedError(f"{config.file}: pools without the prompt (include_prompt); supported: with it")
    return PoolingFacts(kind=_kind(config), normalize="Normalize" in by_kind, prompt=prompt)


def read_longest_text(folder: Path) -> int | None:
    """The most tokens of one text that the folder's model is meant for, None where it does not say."""
    path = folder / "sentence_bert_config.json"
    return read_json_record(path).maybe_integer("max_seq_length") if path.is_file() else None


def read_matryoshka_dimensions(config: Record) -> tuple[int, ...] | None:
    """The lengths that a model's vectors may be cut to, () for any, None where ``config.json`` does not say so."""
    listed = config.numbers("matryoshka_dimensions")
    if listed is not None:
        return tuple(map(int, listed))
    return () if config.flag("is_matryoshka") else None


def _default_prompt(folder: Path) -> str:
    """What sentence-transformers' ``encode`` puts before a text if nothing is asked, "" for nothing."""
    path = folder / PROMPTS
    config = read_json_record(path) if path.is_file() else None
    name = config.maybe_text("default_prompt_name") if config is not None else None
    if config is None or name is None:
        return ""
    prompt = prompts.maybe_text(name) if (prompts := config.record("prompts")) is not None else None
    if prompt is None:
        raise CheckpointError(path, f"default_prompt_name is {name!r:.60}, which prompts does not have")
    return prompt


def _kind(config: Record) -> str:
    if "pooling_mode" in config:
        return _short_kind(config)
    asked = [key for key in config.values if key.startswith("pooling_mode_") and config.get(key) is True]
    if len(asked) != 1 or asked[0] not in KINDS:
        raise UnsupportedError(
            f"{config.file}: pools by {', '.join(asked) or 'nothing'}; supported: {', '.join(KINDS)}"
        )
    return KINDS[asked[0]]


def _short_kind(config: Record) -> str:
    asked = config.get("pooling_mode")
    kind = SHORT_KINDS.get(asked) if isinstance(asked, str) else None
    if kind is None:
        raise UnsupportedError(f"{config.file}: pools by {asked!r:.80}; supported: {', '.join(SHORT_KINDS)}")
    return kind
