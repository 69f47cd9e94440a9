from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.generation_config import GenerationConfig, read_generation_config
from octavo.checkpoint.resolve import resolve_model
from octavo.words.errors import CheckpointError
from tests.checkpoint.gguf_bytes import GGUFBytes, pairs


def read(folder: Path, config: dict[str, Any], generation: dict[str, Any] | None = None) -> GenerationConfig:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_generation_config(resolve_model(str(folder)))


def test_lists_of_eos_and_default_sampling_are_read(tmp_path: Path) -> None:
    generation = {
        "eos_token_id": [128001, 128009],
        "bos_token_id": 128000,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "max_new_tokens": 512,
    }
    found = read(tmp_path, {"eos_token_id": 5}, generation)
    assert found.eos_token_ids == (128001, 128009)
    assert found.bos_token_id == 128000
    assert found.defaults == {
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 20,
        "repetition_penalty": 1.05,
        "max_tokens": 512,
    }


def test_without_the_file_ids_come_from_the_config_and_nothing_is_a_default(tmp_path: Path) -> None:
    found = read(tmp_path, {"text_config": {"eos_token_id": [1, 106]}, "bos_token_id": 2})
    assert found == GenerationConfig(eos_token_ids=(1, 106), bos_token_id=2)


@pytest.mark.parametrize("generation", [{"temperature": "hot"}, {"top_k": 1.5}, {"eos_token_id": [1, "x"]}])
def test_a_value_of_the_wrong_type_names_file_and_key(generation: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"generation_config.json: '{next(iter(generation))}'"):
        read(tmp_path, {}, generation)


def test_a_gguf_file_has_it_in_its_metadata(tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.eos_token_id": 7,
        "tokenizer.ggml.eot_token_id": 9,
        "tokenizer.ggml.bos_token_id": 0,
        "general.sampling.temp": 0.5,
        "general.sampling.top_k": 64,
    }
    path = GGUFBytes(pairs(metadata)).write(tmp_path / "m.gguf")
    found = read_generation_config(resolve_model(str(path)))
    assert found == GenerationConfig(eos_token_ids=(7, 9), bos_token_id=0, defaults={"temperature": 0.5, "top_k": 64})
