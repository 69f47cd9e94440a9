"""Drafters for the random models of tests: checkpoints in the formats that published ones have."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


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
