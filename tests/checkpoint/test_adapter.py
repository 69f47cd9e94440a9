"""Adapters that cannot be served are refused in one line that names the file and the tensor. Case LO03."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from octavo.checkpoint.adapter import AdapterHeader, adapter_hash, check_finite, projection_shapes, read_adapter
from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.words.errors import CheckpointError, UnsupportedError
from tests.tiny_adapters import PREFIX, save_tiny_adapter
from tests.tiny_models import save_tiny_model

Q0 = f"{PREFIX}model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"), "llama")


@pytest.fixture
def adapter(model: Path, tmp_path: Path) -> Path:
    return save_tiny_adapter(tmp_path / "adapter", model, rank=4, alpha=8.0)


def read(adapter: Path, model: Path, max_rank: int = 16) -> AdapterHeader:
    return read_adapter(adapter, projection_shapes(read_model_facts(resolve_model(str(model)))), max_rank)


def change(adapter: Path, **config: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **config}))


def rename(adapter: Path, old: str, new: str | None) -> None:
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    taken = tensors.pop(old)
    save_file(tensors if new is None else {**tensors, new: taken}, file)


def test_every_projection_has_its_matrices_and_scale(adapter: Path, model: Path) -> None:
    updates = read(adapter, model).updates
    assert len(updates) == 3 * 7
    assert {update.scale for update in updates.values()} == {2.0}
    assert updates["model.layers.0.mlp.down_proj"].a.shape == (4, 80)


def test_rank_stabilised_adapters_are_scaled_by_the_root_of_the_rank(adapter: Path, model: Path) -> None:
    change(adapter, use_rslora=True)
    assert {update.scale for update in read(adapter, model).updates.values()} == {8.0 / math.sqrt(4)}


def test_patterns_give_projections_their_own_rank_and_alpha(model: Path, tmp_path: Path) -> None:
    adapter = save_tiny_adapter(tmp_path / "a", model, rank=4, alpha=8.0)
    change(adapter, r=2, rank_pattern={"q_proj": 4}, alpha_pattern={"model.layers.1.mlp.up_proj": 1.0})
    with pytest.raises(CheckpointError, match=r"down_proj.*shape \[4, 80\]; this model and rank 2 need \[2, 80\]"):
        read(adapter, model)
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    change(adapter, rank_pattern=dict.fromkeys(names, 4))
    scales = {name: update.scale for name, update in read(adapter, model).updates.items()}
    assert scales.pop("model.layers.1.mlp.up_proj") == 0.25
    assert set(scales.values()) == {2.0}


@pytest.mark.parametrize("target_modules", ["all-linear", ["q_proj"], ".*_proj", None])
def test_the_tensors_say_which_layers_are_changed_whatever_the_config_targets(
    adapter: Path, model: Path, target_modules: Any
) -> None:
    change(adapter, target_modules=target_modules, exclude_modules=None, layers_to_transform=None)
    assert len(read(adapter, model).updates) == 3 * 7


@pytest.mark.parametrize("wrapped", ["model.language_model.layers", "language_model.model.layers"])
def test_text_models_inside_others_are_found(model: Path, tmp_path: Path, wrapped: str) -> None:
    adapter = save_tiny_adapter(tmp_path / "a", model, modules=("q_proj",))
    tensors = load_file(adapter / "adapter_model.safetensors")
    renamed = {name.replace("model.layers", wrapped, 1): tensor for name, tensor in tensors.items()}
    save_file(renamed, adapter / "adapter_model.safetensors")
    assert "model.layers.2.self_attn.q_proj" in read(adapter, model).updates


def test_keys_that_match_nothing_are_named(adapter: Path, model: Path) -> None:
    rename(adapter, f"{Q0}.lora_A.weight", f"{PREFIX}transformer.h.0.attn.c_attn.lora_A.weight")
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors.*'.*c_attn.lora_A.weight': matches nothing"):
        read(adapter, model)


def test_a_layer_too_many_is_named(adapter: Path, model: Path) -> None:
    rename(adapter, f"{Q0}.lora_A.weight", f"{Q0.replace('0', '3')}.lora_A.weight")
    with pytest.raises(CheckpointError, match=r"layers.3.*matches nothing"):
        read(adapter, model)


def test_half_of_a_pair_is_named(adapter: Path, model: Path) -> None:
    rename(adapter, f"{Q0}.lora_B.weight", None)
    with pytest.raises(CheckpointError, match=r"q_proj.lora_A.weight': has no lora_B.weight beside it"):
        read(adapter, model)


def test_too_high_a_rank_is_told_with_both_numbers(adapter: Path, model: Path) -> None:
    with pytest.raises(CheckpointError, match="has rank 4, and max_lora_rank is 3"):
        read(adapter, model, max_rank=3)


def test_a_tensor_of_another_shape_is_named(adapter: Path, model: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file({**load_file(file), f"{Q0}.lora_B.weight": torch.zeros(95, 4)}, file)
    with pytest.raises(CheckpointError, match=r"q_proj.lora_B.weight': has shape \[95, 4\].*need \[96, 4\]"):
        read(adapter, model)


def test_whole_numbers_are_no_weights(adapter: Path, model: Path) -> None:
    file = adapter / "adapter_model.safetensors"
    save_file({**load_file(file), f"{Q0}.lora_B.weight": torch.zeros(96, 4, dtype=torch.int64)}, file)
    with pytest.raises(CheckpointError, match=r"q_proj.lora_B.weight': is I64"):
        read(adapter, model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_tensor_that_is_not_finite_is_named(model: Path, tmp_path: Path, dtype: torch.dtype, value: float) -> None:
    adapter = save_tiny_adapter(tmp_path / "a", model, dtype=dtype)
    file = adapter / "adapter_model.safetensors"
    tensors = load_file(file)
    tensors[f"{Q0}.lora_B.weight"][0, 0] = torch.finfo(dtype).max
    save_file(tensors, file)
    check_finite(read(adapter, model))
    tensors[f"{Q0}.lora_B.weight"][-1, -1] = value
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"q_proj.lora_B.weight': holds NaN or infinity"):
        check_finite(read(adapter, model))


@pytest.mark.parametrize("part", [0.0, 0.3, 0.9])
def test_a_truncated_file_is_named(adapter: Path, model: Path, part: float) -> None:
    file = adapter / "adapter_model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(part * len(data))])
    with pytest.raises(CheckpointError, match=r"adapter_model.safetensors.*truncated"):
        read(adapter, model)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("model.embed_tokens.lora_embedding_A", "embeddings and of the output head are not served"),
        ("lm_head.lora_A.weight", "embeddings and of the output head are not served"),
        ("model.layers.0.self_attn.q_proj.lora_magnitude_vector", "DoRA is not served"),
    ],
)
def test_what_is_no_low_rank_update_of_a_layer_is_named(adapter: Path, model: Path, name: str, reason: str) -> None:
    rename(adapter, f"{Q0}.lora_A.weight", PREFIX + name)
    with pytest.raises(CheckpointError, match=f"{name}.*{reason}"):
        read(adapter, model)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"use_dora": True}, r"DoRA \(use_dora\) is not served; only low-rank updates are"),
        ({"bias": "all"}, "bias 'all'"),
        ({"lora_bias": True}, "lora_bias"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"rank_pattern": {"(a+)+$": 4}}, r"rank_pattern has '\(a\+\)\+\$'"),
    ],
)
def test_kinds_of_adapters_that_are_not_served_are_named(
    adapter: Path, model: Path, config: dict[str, Any], reason: str
) -> None:
    change(adapter, **config)
    with pytest.raises(UnsupportedError, match=reason):
        read(adapter, model)


@pytest.mark.parametrize("config", [{"r": 0}, {"r": "4"}, {"r": None}, {"lora_alpha": "x"}, {"lora_alpha": 1e400}])
def test_a_config_that_makes_no_sense_is_refused(adapter: Path, model: Path, config: dict[str, Any]) -> None:
    change(adapter, **config)
    with pytest.raises(CheckpointError, match="adapter_config.json"):
        read(adapter, model)


def test_pickled_weights_are_refused(adapter: Path, model: Path) -> None:
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with pytest.raises(UnsupportedError, match="pickled"):
        read(adapter, model)


def test_an_empty_adapter_is_refused(adapter: Path, model: Path) -> None:
    save_file({}, adapter / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match="no tensors"):
        read(adapter, model)


def test_the_hash_covers_both_files_and_no_name(adapter: Path, tmp_path: Path) -> None:
    before = adapter_hash(adapter)
    moved = adapter.rename(tmp_path / "elsewhere")
    assert adapter_hash(moved) == before
    change(moved, lora_alpha=9.0)
    assert adapter_hash(moved) != before
