from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.chat_template import read_chat_template, read_chat_templates, read_special_tokens
from octavo.checkpoint.resolve import Checkpoint, resolve_model
from octavo.words.errors import CheckpointError
from tests.checkpoint.gguf_bytes import GGUFBytes, pairs


def folder(path: Path, **files: Any) -> Checkpoint:
    (path / "config.json").write_text("{}")
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value))
    return resolve_model(str(path))


def test_a_model_without_a_template_has_none(tmp_path: Path) -> None:
    checkpoint = folder(tmp_path)
    assert read_chat_template(checkpoint) is None
    assert read_special_tokens(checkpoint) == {}


def test_the_template_of_the_tokenizer_config_is_text_or_a_list_of_names(tmp_path: Path) -> None:
    assert read_chat_template(folder(tmp_path, tokenizer_config={"chat_template": "{{ x }}\r\n"})) == "{{ x }}\r\n"
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    checkpoint = folder(tmp_path, tokenizer_config={"chat_template": named})
    assert read_chat_template(checkpoint) == "D"
    assert read_chat_templates(checkpoint) == {"default": "D", "tool_use": "T"}


def test_a_file_of_its_own_comes_first_and_keeps_its_newlines(tmp_path: Path) -> None:
    checkpoint = folder(tmp_path, tokenizer_config={"chat_template": "old"}, chat_template={"chat_template": "json"})
    assert read_chat_template(checkpoint) == "json"
    (tmp_path / "chat_template.jinja").write_bytes(b"{{ y }}\r\n\n")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert read_chat_templates(checkpoint) == {"default": "{{ y }}\r\n\n", "tool_use": "tools"}


def test_special_tokens_are_texts_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}
    assert read_special_tokens(folder(tmp_path, tokenizer_config=config)) == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize("value", [5, [{"template": "no name"}], [{"name": "x", "template": 5}], "\ud800"])
def test_a_template_that_is_no_text_is_an_error(value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json.*chat_template"):
        read_chat_template(folder(tmp_path, tokenizer_config={"chat_template": value}))


def test_a_gguf_file_has_templates_and_tokens_in_its_metadata(tmp_path: Path) -> None:
    metadata = {
        "tokenizer.chat_template": "D",
        "tokenizer.chat_template.tool_use": "T",
        "tokenizer.chat_templates": ["tool_use"],
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }
    checkpoint = resolve_model(str(GGUFBytes(pairs(metadata)).write(tmp_path / "m.gguf")))
    assert read_chat_templates(checkpoint) == {"default": "D", "tool_use": "T"}
    assert read_special_tokens(checkpoint) == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize("value", [5, "\ud83d", {"content": ["</s>"]}])
def test_a_special_token_that_is_no_text_is_an_error(value: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json.*eos_token"):
        read_special_tokens(folder(tmp_path, tokenizer_config={"eos_token": value}))


def test_a_special_token_outside_the_vocabulary_is_an_error(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.tokens": ["a"], "tokenizer.ggml.eos_token_id": 1}
    checkpoint = resolve_model(str(GGUFBytes(pairs(metadata)).write(tmp_path / "m.gguf")))
    with pytest.raises(CheckpointError, match="eos_token is id 1 of a vocabulary of 1"):
        read_special_tokens(checkpoint)
