from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from octavo.checkpoint.catalogue import models_dir
from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.hf_facts import count_parameters
from octavo.checkpoint.resolve import resolve_model
from octavo.words.errors import CheckpointError, ConfigError, ModelNotFoundError, UnsupportedError
from octavo.words.model_facts import ModelFacts
from tests.checkpoint.gguf_bytes import GGUFBytes, Info, pairs

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "eos_token_id": [2, 3],
    "bos_token_id": 1,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}


def facts_of(folder: Path, config: dict[str, Any]) -> ModelFacts:
    (folder / "config.json").write_text(json.dumps(config))
    return read_model_facts(resolve_model(str(folder)), load_format="dummy")


def test_a_plain_llama_config_says_what_it_says(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, LLAMA)
    assert (facts.architecture, facts.source_architecture) == ("llama", "LlamaForCausalLM")
    assert (facts.num_heads, facts.num_kv_heads, facts.head_size) == (4, 2, 16)
    assert facts.eos_token_ids == (2, 3)
    assert facts.bos_token_id == 1
    assert facts.layer_types == ("full", "full")
    assert (facts.rope.kind, facts.rope.theta, facts.rope.rotary_dim) == ("default", 10_000.0, 16)
    assert facts.max_position == 256
    assert facts.weight_format == "dummy"


@pytest.mark.parametrize("form", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    ("scaling", "stated", "longest"),
    [
        (YARN, 256, 1024),
        (YARN, 1024, 1024),
        ({"rope_type": "yarn", "factor": 4.0}, 256, 1024),
        ({"rope_type": "linear", "factor": 4.0}, 256, 1024),
        ({"rope_type": "dynamic", "factor": 2.0}, 256, 512),
        (LLAMA3, 2048, 2048),
    ],
)
def test_scaling_lengthens_the_context_exactly_once(
    form: str, scaling: dict[str, Any], stated: int, longest: int, tmp_path: Path
) -> None:
    """LC01: the original length times the factor, whatever the config's own limit says about it."""
    config = LLAMA | {"max_position_embeddings": stated, "rope_theta": 5000.0}
    if form == "rope_parameters":
        config = LLAMA | {"max_position_embeddings": stated}
        scaling = scaling | {"rope_theta": 5000.0}
    facts = facts_of(tmp_path, config | {form: scaling})
    assert facts.max_position == longest
    assert (facts.rope.kind, facts.rope.factor, facts.rope.theta) == (scaling["rope_type"], scaling["factor"], 5000.0)
    assert facts.rope.original_max_position == (256 if scaling["rope_type"] != "dynamic" else stated)


def test_the_oldest_key_for_the_kind_and_its_oldest_name_are_read(tmp_path: Path) -> None:
    divisors = [1.0 + index for index in range(8)]
    scaling = {"type": "su", "short_factor": divisors, "long_factor": [2 * d for d in divisors]}
    config = LLAMA | {"max_position_embeddings": 4096, "original_max_position_embeddings": 256}
    rope = facts_of(tmp_path, config | {"rope_scaling": scaling}).rope
    assert (rope.kind, rope.original_max_position, rope.factor) == ("longrope", 256, 16.0)
    assert rope.long_factor == tuple(2 * d for d in divisors)


def test_yarn_keeps_every_parameter(tmp_path: Path) -> None:
    more = {"beta_fast": 16.0, "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False}
    rope = facts_of(tmp_path, LLAMA | {"rope_scaling": YARN | more | {"attention_factor": 1.277}}).rope
    assert {name: getattr(rope, name) for name in more} == more
    assert rope.attention_factor == 1.277


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"architectures": ["FooForCausalLM"]}, UnsupportedError, "FooForCausalLM; supported: LlamaForCausalLM, Mis"),
        ({"rope_scaling": {"type": "mrope"}}, UnsupportedError, "'mrope'; supported: default, linear"),
        ({"quantization_config": {"quant_method": "foo"}}, UnsupportedError, "'foo' is not supported; supported: unq"),
        ({"hidden_size": None}, CheckpointError, "'hidden_size' is missing"),
        ({"hidden_size": "64"}, CheckpointError, "'hidden_size' is '64'; it must be an integer"),
        ({"num_hidden_layers": 10**30}, CheckpointError, "'num_hidden_layers' is 10000"),
        ({"num_attention_heads": -4}, CheckpointError, "'num_attention_heads' is -4"),
        ({"num_key_value_heads": 3}, CheckpointError, "4 attention heads are not a multiple of 3"),
        ({"rms_norm_eps": "tiny"}, CheckpointError, "'rms_norm_eps' is 'tiny'; it must be a finite number"),
        ({"eos_token_id": "x"}, CheckpointError, "'eos_token_id' is 'x'"),
        ({"rope_scaling": {"type": "linear"}}, CheckpointError, "'factor' is missing"),
        ({"rope_scaling": 4}, CheckpointError, "'rope_scaling' is 4; it must be an object"),
        ({"architectures": [["LlamaForCausalLM"]]}, UnsupportedError, "supported: LlamaForCausalLM, Mis"),
        ({"rms_norm_eps": -1e-5}, CheckpointError, "'rms_norm_eps' is -1e-05; it must be above 0"),
        ({"rope_theta": 0}, CheckpointError, "'rope_theta' is 0; it must be above 0"),
        ({"rope_scaling": {"type": "yarn", "factor": -2}}, CheckpointError, "'factor' is -2; it must be above 0"),
        ({"partial_rotary_factor": 0.7}, CheckpointError, "11 entries of a head rotate in pairs; a head has 16"),
        (
            {"architectures": ["ElectraModel"]},
            UnsupportedError,
            "ElectraModel; supported: .*BertModel, .*DistilBertModel",
        ),
        (
            {"architectures": ["RobertaModel"], "max_position_embeddings": 2},
            CheckpointError,
            "has 2 positions, and they begin with number 2",
        ),
        ({"partial_rotary_factor": 1.5}, CheckpointError, "24 entries of a head rotate in pairs; a head has 16"),
    ],
)
def test_a_config_that_cannot_be_is_one_line_naming_file_and_key(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        facts_of(tmp_path, LLAMA | change)
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[1]", "[" * 100_000, "\x00"])
def test_a_config_that_is_no_json_object_is_an_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="config.json"):
        read_model_facts(resolve_model(str(tmp_path)), load_format="dummy")


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    """SE09: neither for a known architecture nor for an unknown one."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    auto_map = {"auto_map": {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}}
    assert facts_of(tmp_path, LLAMA | auto_map).architecture == "llama"
    with pytest.raises(UnsupportedError, match="is never run"):
        facts_of(tmp_path, LLAMA | auto_map | {"architectures": ["EvilForCausalLM"]})
    assert not (tmp_path / "ran").exists()


def test_mistral_slides_in_every_layer_or_in_none(tmp_path: Path) -> None:
    config = LLAMA | {"architectures": ["MistralForCausalLM"]}
    assert facts_of(tmp_path, config | {"sliding_window": 32}).layer_types == ("sliding_window",) * 2
    facts = facts_of(tmp_path, config | {"sliding_window": None})
    assert (facts.layer_types, facts.sliding_window) == (("full",) * 2, None)


def test_qwen2_slides_only_where_told_and_has_biases(tmp_path: Path) -> None:
    config = LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 32, "max_window_layers": 1}
    facts = facts_of(tmp_path, config)
    assert (facts.sliding_window, facts.layer_types) == (None, ("full", "full"))
    assert (facts.attention_bias, facts.attention_out_bias) == (True, False)
    facts = facts_of(tmp_path, config | {"use_sliding_window": True})
    assert (facts.sliding_window, facts.layer_types) == (32, ("full", "sliding_window"))


def test_gemma_in_its_old_form_and_nested_gets_the_defaults_it_leaves_out(tmp_path: Path) -> None:
    text = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 7,
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "eos_token_id": [1, 106]}
    facts = facts_of(tmp_path, outer | {"text_config": text})
    assert (facts.num_heads, facts.num_kv_heads, facts.head_size, facts.vocab_size) == (8, 4, 256, 262_208)
    assert facts.layer_types == ("sliding_window",) * 5 + ("full", "sliding_window")
    assert facts.local_rope is not None
    assert (facts.rope.kind, facts.rope.theta, facts.rope.factor) == ("linear", 1_000_000.0, 8.0)
    assert (facts.local_rope.kind, facts.local_rope.theta) == ("default", 10_000.0)
    assert facts.max_position == 131_072
    assert facts.eos_token_ids == (1, 106)
    assert facts.tie_word_embeddings
    assert (facts.norm_weight_offset, facts.attention_scale) == (1.0, 256**-0.5)
    assert facts.embedding_scale == math.sqrt(2560)


@pytest.mark.parametrize("architecture", ["llama", "mistral", "qwen2", "qwen3", "gemma3"])
def test_facts_agree_with_transformers(architecture: str, tmp_path: Path) -> None:
    from tests.tiny_models import save_tiny_model

    folder = save_tiny_model(tmp_path, architecture)
    facts = read_model_facts(resolve_model(str(folder)))
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert facts.architecture == architecture
    assert facts.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.weight_bytes == 4 * facts.num_parameters
    assert (facts.stored_dtype, facts.weight_format) == ("float32", "safetensors")
    assert facts.head_size == model.model.layers[0].self_attn.head_dim
    assert facts.tie_word_embeddings == config.tie_word_embeddings
    assert facts.attention_bias == (model.model.layers[0].self_attn.q_proj.bias is not None)
    assert facts.attention_out_bias == (model.model.layers[0].self_attn.o_proj.bias is not None)
    assert facts.qk_norm == hasattr(model.model.layers[0].self_attn, "q_norm")
    windows = [getattr(layer.self_attn, "sliding_window", None) for layer in model.model.layers]
    if architecture == "mistral":
        windows = [config.sliding_window] * config.num_hidden_layers
    assert [facts.sliding_window if kind != "full" else None for kind in facts.layer_types] == windows
    assert facts.max_position == config.max_position_embeddings
    # What dummy weights are sized by leaves out only biases and norms of heads.
    small = facts.num_parameters - count_parameters(facts)
    assert 0 <= small < 0.02 * facts.num_parameters


def test_a_load_format_that_is_not_there_is_an_error(succ: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="load_format='gguf'"):
        read_model_facts(resolve_model(str(succ)), load_format="gguf")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(ModelNotFoundError, match="no weights"):
        read_model_facts(resolve_model(str(tmp_path)))


def test_a_config_that_describes_far_more_than_the_files_hold_is_refused_early(succ: Path, tmp_path: Path) -> None:
    for file in succ.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((succ / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 2**30}))
    with pytest.raises(CheckpointError, match=r"config\.json: describes a model of \d+ parameters, but the files hold"):
        read_model_facts(resolve_model(str(tmp_path)))


REAL = {
    "smollm2-135m": {
        "architecture": "llama",
        "num_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_heads": 9,
        "num_kv_heads": 3,
        "head_size": 64,
        "vocab_size": 49152,
        "max_position": 8192,
        "tie_word_embeddings": True,
        "stored_dtype": "q4_1",
        "num_parameters": 134_515_008,
        "weight_bytes": 96_576_768,
        "eos_token_ids": (2,),
        "bos_token_id": 1,
        "norm_weight_offset": 0.0,
    },
    "gemma3-270m": {
        "architecture": "gemma3",
        "num_layers": 18,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_size": 256,
        "vocab_size": 262_144,
        "max_position": 32_768,
        "sliding_window": 512,
        "layer_types": (("sliding_window",) * 5 + ("full",)) * 3,
        "qk_norm": True,
        "attention_scale": 0.0625,
        "hidden_act": "gelu_pytorch_tanh",
        "norm_weight_offset": 0.0,
        "eos_token_ids": (1,),
        "num_parameters": 268_098_176,
    },
    "qwen2.5-coder-0.5b": {
        "architecture": "qwen2",
        "num_layers": 24,
        "hidden_size": 896,
        "num_heads": 14,
        "num_kv_heads": 2,
        "head_size": 64,
        "vocab_size": 151_936,
        "attention_bias": True,
        "attention_out_bias": False,
        "tie_word_embeddings": False,
        "eos_token_ids": (151_645,),
        "bos_token_id": 151_643,
    },
}


@pytest.mark.parametrize("name", REAL)
def test_facts_of_real_gguf_files(name: str) -> None:
    if not (models_dir() / name).is_dir():
        pytest.skip(f"{name} is not in the model cache: python scripts/test_models.py {name}")
    facts = read_model_facts(resolve_model(name))
    assert {key: getattr(facts, key) for key in REAL[name]} == REAL[name]
    assert facts.weight_format == "gguf"
    thetas = {"smollm2-135m": 100_000.0, "gemma3-270m": 1_000_000.0, "qwen2.5-coder-0.5b": 1_000_000.0}
    assert facts.rope.theta == thetas[name]
    assert (facts.local_rope is not None) == (name == "gemma3-270m")


GGUF_LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "llama.block_count": 1,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 0.5,
}


def gguf_facts(folder: Path, tensors: list[Info] | None = None, **metadata: Any) -> ModelFacts:
    values = {key: value for key, value in (GGUF_LLAMA | metadata).items() if value is not None}
    embedding = Info("token_embd.weight", (64, 1000), b"\0" * 64 * 1000 * 4)
    path = GGUFBytes(pairs(values), [embedding, *(tensors or [])]).write(folder / "m.gguf")
    return read_model_facts(resolve_model(str(path)))


def test_gguf_rope_scaling_lengthens_the_context_once(tmp_path: Path) -> None:
    scaling = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    facts = gguf_facts(tmp_path, **scaling, **{"llama.rope.scaling.original_context_length": 256})
    assert (facts.max_position, facts.rope.kind, facts.rope.attention_factor) == (1024, "yarn", None)
    facts = gguf_facts(tmp_path, **scaling, **{"llama.rope.scaling.attn_factor": 2.0})
    assert facts.rope.attention_factor == pytest.approx(2.0 * (0.1 * math.log(4.0) + 1.0))


def test_gguf_rope_frequencies_become_divisors_for_every_length(tmp_path: Path) -> None:
    import struct

    divisors = (1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0)
    freqs = Info("rope_freqs.weight", (8,), struct.pack("<8f", *divisors))
    facts = gguf_facts(tmp_path, [freqs])
    assert facts.rope.short_factor == facts.rope.long_factor == divisors
    assert (facts.rope.attention_factor, facts.max_position) == (1.0, 256)
    with pytest.raises(CheckpointError, match="tensor 'rope_freqs.weight': must be 8 F32 values"):
        gguf_facts(tmp_path, [Info("rope_freqs.weight", (4,), b"\0" * 16)])


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"general.architecture": "foo"}, UnsupportedError, "'foo'; supported: llama, qwen2, qwen3, gemma3"),
        ({"general.architecture": None}, CheckpointError, "'general.architecture' is missing"),
        ({"llama.block_count": None}, CheckpointError, "'llama.block_count' is missing"),
        ({"llama.block_count": "two"}, CheckpointError, "'llama.block_count' is 'two'"),
        ({"llama.expert_count": 8}, UnsupportedError, "mixture of experts"),
        ({"llama.rope.scaling.type": "foo"}, UnsupportedError, "scaling 'foo'; supported: none, linear"),
        ({"llama.attention.head_count_kv": [2, 1]}, UnsupportedError, "head_count_kv' differs between layers"),
        ({"split.count": 3}, UnsupportedError, "split GGUF"),
        ({"llama.attention.head_count_kv": 3}, CheckpointError, "4 attention heads are not a multiple of 3"),
        ({"llama.rope.freq_base": 0.0}, CheckpointError, "'llama.rope.freq_base' is 0; it must be above 0"),
        ({"llama.rope.dimension_count": 7}, CheckpointError, "7 entries of a head rotate in pairs"),
        (
            {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": -1.0},
            CheckpointError,
            "'llama.rope.scaling.factor' is -1; it must be above 0",
        ),
    ],
)
def test_gguf_metadata_that_cannot_be_is_one_line(
    change: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message) as caught:
        gguf_facts(tmp_path, **change)
    assert "m.gguf" in str(caught.value)
