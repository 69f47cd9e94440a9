"""Random LoRA adapters in PEFT's format, written without PEFT, and models with an adapter merged into their weights."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ALL = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
PREFIX = "base_model.model."


def save_tiny_adapter(
    folder: Path,
    model: Path,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    modules: Iterable[str] = ALL,
    size: float = 0.15,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write a random adapter of a checkpoint's linear layers into ``folder`` and return it."""
    generator = torch.Generator().manual_seed(1000 + seed)
    tensors: dict[str, Tensor] = {}
    modules = tuple(modules)
    for name, weight in sorted(load_file(model / "model.safetensors").items()):
        layer = name.removesuffix(".weight")
        if layer.rsplit(".", 1)[-1] in modules:
            for side, shape in (("A", (rank, weight.shape[1])), ("B", (weight.shape[0], rank))):
                tensors[f"{PREFIX}{layer}.lora_{side}.weight"] = (torch.randn(shape, generator=generator) * size).to(
                    dtype
                )
    write_adapter(folder, tensors, {"r": rank, "lora_alpha": alpha, "target_modules": list(modules), **config})
    return folder


def write_adapter(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    """Write an adapter's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    common = {"peft_type": "LORA", "bias": "none", "task_type": "CAUSAL_LM", "fan_in_fan_out": False}
    (folder / "adapter_config.json").write_text(json.dumps({**common, **config}))
    save_file(tensors, folder / "adapter_model.safetensors")


def save_merged(folder: Path, model: Path, adapter: Path) -> Path:
    """Write the checkpoint ``model`` with W + scale B A in place of each adapted W into ``folder`` and return it."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    rank = config["r"]
    scale = config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank)
    weights, updates = load_file(model / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for name in [name for name in updates if name.endswith(".lora_A.weight")]:
        layer = name.removeprefix(PREFIX).removesuffix(".lora_A.weight")
        a, b = updates[name].double(), updates[name.replace("lora_A", "lora_B")].double()
        weights[f"{layer}.weight"] = (weights[f"{layer}.weight"].double() + scale * b @ a).float()
    folder.mkdir(parents=True, exist_ok=True)
    for file in model.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def save_adapter_of_shapes(
    folder: Path, shapes: Mapping[str, tuple[int, int]], *, rank: int = 8, seed: int = 0, size: float = 0.02
) -> Path:
    """Write a random adapter of projections of these (out_features, in_features) into ``folder`` and return it."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, (out_features, in_features) in shapes.items():
        for side, shape in (("A", (rank, in_features)), ("B", (out_features, rank))):
            tensors[f"{PREFIX}{name}.lora_{side}.weight"] = torch.randn(shape, generator=generator) * size
    write_adapter(folder, tensors, {"r": rank, "lora_alpha": 2 * rank})
    return folder
