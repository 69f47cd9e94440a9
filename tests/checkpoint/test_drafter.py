from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.drafter import DrafterFiles, check_vocabularies, read_drafter
from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.words.errors import CheckpointError, ConfigError, UnsupportedError
from octavo.words.model_facts import ModelFacts
from tests.drafters import save_eagle_head, save_medusa_heads
from tests.tiny_models import VOCAB_SIZE, save_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model", "llama")


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelFacts:
    return read_model_facts(resolve_model(str(folder)))


def test_a_draft_model_is_read_as_a_model(folder: Path, model: ModelFacts) -> None:
    assert read_drafter(str(folder), "draft_model", model).facts.network == model


@pytest.mark.parametrize(("bias", "embedding"), [(True, False), (False, True)])
def test_an_eagle_head_tells_by_its_tensors_what_it_has(
    folder: Path, model: ModelFacts, tmp_path: Path, bias: bool, embedding: bool
) -> None:
    save_eagle_head(folder, tmp_path, bias=bias, embedding=embedding)
    facts = read_drafter(str(tmp_path), "eagle", model).facts
    assert (facts.projection_bias, facts.has_embedding, facts.network.num_layers) == (bias, embedding, 1)


@pytest.mark.parametrize("naming", ["medusa", "vllm"])
def test_medusa_heads_are_counted_in_either_format(
    folder: Path, model: ModelFacts, tmp_path: Path, naming: str
) -> None:
    save_medusa_heads(folder, tmp_path, num_heads=3, num_layers=2, naming=naming)
    facts = read_drafter(str(tmp_path), "medusa", model).facts
    assert (facts.num_heads, facts.num_head_layers, facts.naming) == (3, 2, naming)
    assert facts.network.num_parameters == 3 * (2 * (48 * 48 + 48) + VOCAB_SIZE * 48)


def test_a_head_for_another_model_is_refused(folder: Path, model: ModelFacts, tmp_path: Path) -> None:
    other = save_tiny_model(tmp_path / "other", "llama", hidden_size=96, num_attention_heads=6)
    heads = tmp_path / "heads"
    heads.mkdir()
    save_medusa_heads(other, heads)
    with pytest.raises(ConfigError, match="for another model: its hidden size and vocabulary are 96 and 320"):
        read_drafter(str(heads), "medusa", model)


@pytest.mark.parametrize(
    ("changes", "problem"), [({"draft_vocab_size": 100}, "EAGLE-3"), ({"num_hidden_layers": 2}, "of 2 layers")]
)
def test_other_kinds_of_eagle_are_refused(
    folder: Path, model: ModelFacts, tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    save_eagle_head(folder, tmp_path)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | changes))
    with pytest.raises(UnsupportedError, match=problem):
        read_drafter(str(tmp_path), "eagle", model)


def test_a_folder_without_heads_is_refused(folder: Path, model: ModelFacts) -> None:
    with pytest.raises(CheckpointError, match="no Medusa heads"):
        read_drafter(str(folder), "medusa", model)


TEXTS = ["a", "b", "c"]


@pytest.mark.parametrize(
    ("theirs", "problem"),
    [
        (["a", "x", "c"], "token 1 is 'x' there and 'b' here"),
        (["a", "b"], "it knows 2 tokens, the model 3"),
        (["a", "b", "c", "d"], "it knows 4 tokens, the model 3"),
    ],
)
def test_vocabularies_are_compared_token_by_token(
    folder: Path, model: ModelFacts, theirs: list[str], problem: str
) -> None:
    drafter = read_drafter(str(folder), "draft_model", model)
    check_vocabularies(TEXTS, TEXTS, drafter, model)
    with pytest.raises(ConfigError, match=problem):
        check_vocabularies(TEXTS, theirs, drafter, model)


def test_without_a_tokenizer_sizes_are_compared(
    folder: Path, model: ModelFacts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drafter = read_drafter(str(folder), "draft_model", model)
    check_vocabularies(TEXTS, None, drafter, model)
    assert "are taken for the model's" in caplog.text
    other: DrafterFiles = read_drafter(
        str(save_tiny_model(tmp_path / "other", "llama", vocab_size=100)), "draft_model", model
    )
    with pytest.raises(ConfigError, match="its vocabulary has 100 tokens, the model's 320"):
        check_vocabularies(TEXTS, None, other, model)
