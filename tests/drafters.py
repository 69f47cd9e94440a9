"""Drafters for the random models of tests: checkpoints in the formats that published ones have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor


def save_noisy_copy(model: Path, folder: Path, *, noise: float = 0.02) -> Path:
    """A draft model: the model with noise in its weights, so that it is often right."""
    generator = torch.Generator().manual_seed(5)
    tensors = load_file(model / "model.safetensors")
    noisy = {
        name: tensor + noise * torch.randn(tensor.shape, generator=generator)
        for name, tensor in sorted(tensors.items())
    }
    save_file(noisy, folder / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(model / "config.json", folder)
    return folder


def save_eagle_head(model: Path, folder: Path, *, seed: int = 7, bias: bool = True, embedding: bool = True) -> Path:
    """A random EAGLE head for a tiny Llama, in the authors' format."""
    config = json.loads((model / "config.json").read_text())
    size, mlp, head_size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_size, config["num_key_value_heads"] * head_size
    shapes = {
        "fc.weight": (size, 2 * size),
        "layers.0.self_attn.q_proj.weight": (queries, size),
        "layers.0.self_attn.k_proj.weight": (keys, size),
        "layers.0.self_attn.v_proj.weight": (keys, size),
        "layers.0.self_attn.o_proj.weight": (size, queries),
        "layers.0.mlp.gate_proj.weight": (mlp, size),
        "layers.0.mlp.up_proj.weight": (mlp, size),
        "layers.0.mlp.down_proj.weight": (size, mlp),
        "layers.0.post_attention_layernorm.weight": (size,),
    }
    if bias:
        shapes["fc.bias"] = (size,)
    if embedding:
        shapes["embed_tokens.weight"] = (config["vocab_size"], size)
    _save(folder, _random(shapes, seed), {**config, "num_hidden_layers": 1, "bias": bias})
    return folder


def save_medusa_heads(
    model: Path, folder: Path, *, seed: int = 8, num_heads: int = 3, num_layers: int = 2, naming: str = "medusa"
) -> Path:
    """Random Medusa heads for a tiny model, in the authors' format or vLLM's."""
    config = json.loads((model / "config.json").read_text())
    size, vocab_size = config["hidden_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            name = f"{head}.{layer}.linear" if naming == "medusa" else f"blocks.{head}.layers.{layer}"
            shapes |= {f"{name}.weight": (size, size), f"{name}.bias": (size,)}
        output = f"{head}.{num_layers}.weight" if naming == "medusa" else f"lm_heads.{head}.weight"
        shapes[output] = (vocab_size, size)
    _save(folder, _random(shapes, seed), {"medusa_num_heads": num_heads, "medusa_num_layers": num_layers})
    return folder


def _random(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.2 + ("norm" in name) for name, shape in sorted(shapes.items())
    }


def _save(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config))
