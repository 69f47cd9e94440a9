"""What a checkpoint says about ending and sampling: EOS ids and default sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from octavo.checkpoint.gguf_facts import gguf_eos_token_ids, gguf_token_id
from octavo.checkpoint.gguf_header import GGUFFile
from octavo.checkpoint.hf_facts import token_ids
from octavo.checkpoint.record import Record, read_json_record
from octavo.checkpoint.resolve import Checkpoint
from octavo.words.model_facts import ModelFacts

# Name in the file -> name in SamplingParams.
HF_FLOATS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
}
HF_INTEGERS = {"top_k": "top_k", "max_new_tokens": "max_tokens"}
GGUF_FLOATS = {"temp": "temperature", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty"}
GGUF_INTEGERS = {"top_k": "top_k"}


@dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How a model wants to be sampled. ``defaults`` maps fields of SamplingParams to values; ids may be missing."""

    eos_token_ids: tuple[int, ...] = ()
    bos_token_id: int | None = None
    defaults: Mapping[str, float | int] = field(default_factory=dict)


def read_generation_config(checkpoint: Checkpoint) -> GenerationConfig:
    """Return the checkpoint's generation config.

    A folder's ``generation_config.json`` comes before ``config.json``, id by id; a GGUF file has both in its metadata.
    Raises CheckpointError for a broken file or a value of the wrong type.
    """
    if checkpoint.kind == "gguf":
        return _from_gguf(checkpoint.gguf)
    own_path = checkpoint.path / "generation_config.json"
    own = read_json_record(own_path) if own_path.exists() else Record(own_path, {})
    config = read_json_record(checkpoint.path / "config.json")
    places = [own, config, *([text] if (text := config.record("text_config")) else [])]
    return GenerationConfig(
        eos_token_ids=_first(places, "eos_token_id"),
        bos_token_id=next(iter(_first(places, "bos_token_id")), None),
        defaults=_defaults(own, HF_FLOATS, HF_INTEGERS),
    )


def end_token_ids(config: GenerationConfig, facts: ModelFacts, tokenizer_eos_id: int | None) -> tuple[int, ...]:
    """All ids that end a text, whoever names them: the tokenizer, the generation config or the model's own config."""
    own = () if tokenizer_eos_id is None else (tokenizer_eos_id,)
    ids = (*own, *config.eos_token_ids, *facts.eos_token_ids)
    return tuple(dict.fromkeys(token_id for token_id in ids if 0 <= token_id < facts.vocab_size))


def _first(places: list[Record], key: str) -> tuple[int, ...]:
    return next((ids for place in places if (ids := token_ids(place, key))), ())


def _from_gguf(file: GGUFFile) -> GenerationConfig:
    return GenerationConfig(
        eos_token_ids=gguf_eos_token_ids(file),
        bos_token_id=gguf_token_id(file, "bos"),
        defaults=_defaults(Record(file.path, file.metadata, prefix="general.sampling."), GGUF_FLOATS, GGUF_INTEGERS),
    )


def _defaults(record: Record, floats: Mapping[str, str], integers: Mapping[str, str]) -> dict[str, float | int]:
    found: dict[str, float | int] = {}
    for key, field_name in floats.items():
        if (number := record.maybe_number(key)) is not None:
            found[field_name] = number
    for key, field_name in integers.items():
        if (integer := record.maybe_integer(key, at_least=-1)) is not None:
            found[field_name] = integer
    return found
