"""Rotary tables against Transformers' own (case LC01)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.device.layers.rotary import rope_table
from octavo.words.errors import UnsupportedError
from octavo.words.model_facts import ModelFacts, RopeFacts

ORIGINAL = 256
LONG = {"short_factor": [1.0 + 0.1 * i for i in range(8)], "long_factor": [2.0 + 0.5 * i for i in range(8)]}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": ORIGINAL}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL,
    },
    "yarn": YARN,
    "yarn-untruncated": {**YARN, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn-mscale": {**YARN, "mscale": 1.3, "mscale_all_dim": 0.7},
    "yarn-attention-factor": {**YARN, "attention_factor": 1.5},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": ORIGINAL, **LONG},
}


def config_of(kind: str) -> LlamaConfig:
    return LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=16,
        num_hidden_layers=1,
        max_position_embeddings=ORIGINAL,
        rope_parameters={"rope_theta": 10_000.0, **KINDS[kind]},
    )


def facts_of(config: LlamaConfig, folder: Path) -> ModelFacts:
    (folder / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["LlamaForCausalLM"]}))
    return read_model_facts(resolve_model(str(folder)), load_format="dummy")


@pytest.mark.parametrize("max_model_len", [200, 700])
@pytest.mark.parametrize("kind", KINDS)
def test_cosines_and_sines_are_those_of_transformers(kind: str, max_model_len: int, tmp_path: Path) -> None:
    """One pass of Transformers over max_model_len positions, so that length-dependent kinds see the same length."""
    config = config_of(kind)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(max_model_len).unsqueeze(0))
    facts = facts_of(config, tmp_path)
    table = rope_table(facts.rope, max_model_len, facts.max_position)
    assert table.cos_sin.shape == (max_model_len, 16)
    torch.testing.assert_close(table.cos_sin[:, :8], cos[0, :, :8], rtol=0, atol=1e-6)
    torch.testing.assert_close(table.cos_sin[:, 8:], sin[0, :, :8], rtol=0, atol=1e-6)


def test_yarn_multiplies_the_original_length_once(tmp_path: Path) -> None:
    assert facts_of(config_of("yarn"), tmp_path).max_position == 4 * ORIGINAL


def test_every_kind_differs_from_the_default(tmp_path: Path) -> None:
    tables = {}
    for kind in KINDS:
        facts = facts_of(config_of(kind), tmp_path)
        tables[kind] = rope_table(facts.rope, 700, facts.max_position).cos_sin
    names = list(tables)
    equal = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :] if torch.equal(tables[a], tables[b])]
    assert equal == []


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_kinds_that_depend_on_length_are_fixed_by_the_engines(kind: str, tmp_path: Path) -> None:
    facts = facts_of(config_of(kind), tmp_path)
    short, long = (rope_table(facts.rope, length, facts.max_position).cos_sin for length in (ORIGINAL, ORIGINAL + 1))
    assert not torch.equal(short, long[:ORIGINAL])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="kind 'spiral' is not one of default, linear"):
        rope_table(RopeFacts(kind="spiral", rotary_dim=8), 16, 16)


def test_longrope_without_its_factors_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="longrope needs 4 long and short factors"):
        rope_table(RopeFacts(kind="longrope", rotary_dim=8, short_factor=(1.0,)), 16, 16)
