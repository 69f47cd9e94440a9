"""From facts to a model: the table, its refusals, and what construction costs."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import pytest
import torch

from octavo.device.attention.reference import ReferenceAttention
from octavo.device.loader.weight_map import NameResolver
from octavo.device.models.build import build_model
from octavo.device.models.options import ModelOptions
from octavo.device.models.table import MODELS
from octavo.words.errors import UnsupportedError
from octavo.words.model_facts import ModelFacts, RopeFacts

OPTIONS = ModelOptions(
    dtype=torch.bfloat16, kv_cache_dtype=torch.float32, max_model_len=64, attention=ReferenceAttention()
)


def facts(**changes: object) -> ModelFacts:
    values: dict[str, object] = {
        "architecture": "llama",
        "source_architecture": "LlamaForCausalLM",
        "num_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_size": 8,
        "vocab_size": 100,
        "max_position": 64,
        "norm_eps": 1e-5,
        "rope": RopeFacts(rotary_dim=8),
    }
    return ModelFacts(**{**values, **changes})  # type: ignore[arg-type]


def test_every_entry_of_the_table_resolves() -> None:
    for entry in MODELS.values():
        module, name = entry.split(":")
        assert hasattr(import_module(module), name)


def test_parameters_have_the_models_dtype_and_no_gradient() -> None:
    parameters = dict(build_model(facts(), OPTIONS).named_parameters())
    assert {parameter.dtype for parameter in parameters.values()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in parameters.values())
    assert parameters["layers.1.attention.qkv.weight"].shape == (64, 32)
    assert "lm_head.rows.weight" in parameters


def test_a_tied_head_is_the_embedding_itself() -> None:
    model = build_model(facts(tie_word_embeddings=True), OPTIONS)
    assert model.lm_head.rows is model.embed
    assert not any(name.startswith("lm_head") for name, _ in model.named_parameters())


@pytest.mark.parametrize("tied", [False, True])
def test_a_model_that_is_asked_for_no_logits_has_no_head_and_loads_none(tied: bool) -> None:
    model = build_model(facts(tie_word_embeddings=tied), replace(OPTIONS, has_head=False))
    assert not hasattr(model, "lm_head")
    assert NameResolver(model.weight_map, gguf=False).resolve("lm_head.weight") is None


def test_specs_have_the_caches_dtype() -> None:
    specs = build_model(facts(), OPTIONS).kv_cache_specs()
    assert list(specs) == ["layers.0.attention", "layers.1.attention"]
    assert {spec.dtype for spec in specs.values()} == {"float32"}


def test_an_unknown_architecture_is_refused_with_the_list() -> None:
    with pytest.raises(
        UnsupportedError, match=r"'abacus' \(AbacusLM\) is not supported; supported are bert, distilbert, gemma3, llama"
    ):
        build_model(facts(architecture="abacus", source_architecture="AbacusLM"), OPTIONS)


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="activation 'relu' is not one of silu, gelu_pytorch_tanh"):
        build_model(facts(hidden_act="relu"), OPTIONS)
