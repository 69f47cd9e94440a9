"""How a folder with the files of sentence-transformers pools, and which ways of pooling are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.pooling_facts import read_pooling_facts
from octavo.words.errors import CheckpointError, UnsupportedError
from octavo.words.model_facts import PoolingFacts

MEAN = {"word_embedding_dimension": 48, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": False}


def write(folder: Path, pooling: dict[str, Any], *more: str, prompts: dict[str, Any] | None = None) -> Path:
    """The files of a model that pools so, with modules behind that."""
    modules = [{"path": f"{i}_{name}" if i else "", "type": name} for i, name in enumerate(("Transformer", "Pooling"))]
    modules += [{"path": f"2_{name}", "type": f"sentence_transformers.models.{name}"} for name in more]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if prompts is not None:
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


@pytest.mark.parametrize(
    ("pooling", "kind"),
    [
        (MEAN, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "mean", "embedding_dimension": 48}, "mean"),
        ({"pooling_mode": "cls"}, "cls"),
        ({"pooling_mode": "lasttoken"}, "last"),
    ],
    ids=str,
)
def test_one_way_of_pooling_is_read(tmp_path: Path, pooling: dict[str, Any], kind: str) -> None:
    assert read_pooling_facts(write(tmp_path, pooling, "Normalize")) == PoolingFacts(kind=kind, normalize=True)


def test_a_folder_that_does_not_say_how_it_pools(tmp_path: Path) -> None:
    assert read_pooling_facts(tmp_path) is None
    (tmp_path / "modules.json").write_text(json.dumps([{"path": "", "type": "sentence_transformers.Transformer"}]))
    assert read_pooling_facts(tmp_path) is None


@pytest.mark.parametrize(
    ("pooling", "more", "problem"),
    [
        ({"pooling_mode_max_tokens": True}, (), "pools by pooling_mode_max_tokens; supported: pooling_mode_mean"),
        ({**MEAN, "pooling_mode_max_tokens": True}, (), "by pooling_mode_mean_tokens, pooling_mode_max_tokens; supp"),
        ({**MEAN, "pooling_mode_cls_token": True}, (), "by pooling_mode_mean_tokens, pooling_mode_cls_token; supp"),
        ({**MEAN, "pooling_mode_mean_tokens": False}, (), "pools by nothing; supported"),
        ({"pooling_mode": "max"}, (), "pools by 'max'; supported: mean, cls, lasttoken"),
        ({"pooling_mode": ["mean", "cls"]}, (), r"pools by \['mean', 'cls'\]; supported"),
        (MEAN, ("Dense",), "module Dense; supported: Transformer, Pooling, Normalize"),
        (MEAN, ("Normalize", "LayerNorm"), "module LayerNorm; supported: Transformer, Pooling, Normalize"),
    ],
)
def test_other_ways_of_pooling_and_modules_are_refused_in_one_line(
    tmp_path: Path, pooling: dict[str, Any], more: tuple[str, ...], problem: str
) -> None:
    with pytest.raises(UnsupportedError, match=problem) as caught:
        read_pooling_facts(write(tmp_path, pooling, *more))
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("prompts", "prompt"),
    [
        ({}, ""),
        ({"prompts": {"query": "query: "}, "default_prompt_name": None}, ""),
        ({"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": "document"}, "passage: "),
    ],
    ids=str,
)
def test_only_the_default_prompt_is_put_before_texts(tmp_path: Path, prompts: dict[str, Any], prompt: str) -> None:
    facts = read_pooling_facts(write(tmp_path, {**MEAN, "include_prompt": True}, prompts=prompts))
    assert facts == PoolingFacts(kind="mean", prompt=prompt)


def test_prompts_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    folder = write(tmp_path, {**MEAN, "include_prompt": False}, prompts=prompts)
    with pytest.raises(UnsupportedError, match="pools without the prompt"):
        read_pooling_facts(folder)
    for prompts in ({"default_prompt_name": "s2p"}, {"prompts": {"query": "q"}, "default_prompt_name": "s2p"}):
        (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
        with pytest.raises(CheckpointError, match="default_prompt_name is 's2p', which prompts does not have"):
            read_pooling_facts(folder)
