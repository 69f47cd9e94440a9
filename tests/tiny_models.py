"""Random tiny checkpoints of every architecture, as Hugging Face folders, with Transformers as their oracle.

Weights are float32 with a standard deviation of at least 0.2, so that every part of a layer moves the logits far more
than rounding does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

VOCAB_SIZE = 320
WINDOW = 24

_CONFIGS: dict[str, type[PretrainedConfig]] = {
    "llama": LlamaConfig,
    "mistral": MistralConfig,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "gemma3": Gemma3TextConfig,
}
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OWN: dict[str, dict[str, Any]] = {
    "llama": {"tie_word_embeddings": True},
    "mistral": {"sliding_window": WINDOW, "tie_word_embeddings": False},
    # Qwen2 has no head size of its own: 112 / 14 = 8 here, in groups of 7.
    "qwen2": {"hidden_size": 112, "num_attention_heads": 14, "tie_word_embeddings": True},
    "qwen3": {"num_attention_heads": 7, "num_key_value_heads": 1, "tie_word_embeddings": False},
    "gemma3": {
        "num_hidden_layers": 7,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
        },
    },
}
ARCHITECTURES = tuple(_CONFIGS)


def tiny_config(architecture: str, **overrides: Any) -> PretrainedConfig:
    """Return a small config of the family; ``overrides`` are its own keyword arguments."""
    shape = {**_SHAPE, **_OWN[architecture], **overrides}
    if architecture == "qwen2":
        del shape["head_dim"]
    return _CONFIGS[architecture](**shape)


def save_tiny_model(
    folder: Path, architecture: str, *, seed: int = 0, max_shard_size: str = "50GB", **overrides: Any
) -> Path:
    """Write a random checkpoint (config.json and safetensors) into ``folder`` and return it."""
    model = AutoModelForCausalLM.from_config(tiny_config(architecture, **overrides), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator) * 0.2
        # Norm weights keep their neutral value in the middle.
        parameter.data.copy_(parameter.data + noise if "norm" in name else noise)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def oracle(folder: Path) -> PreTrainedModel:
    """Load a checkpoint with Transformers, float32 and eager attention."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def oracle_logits(model: PreTrainedModel, token_ids: list[int]) -> Tensor:
    """Return float32 logits [num_tokens, vocab_size] of one teacher-forced pass over the whole sequence."""
    return model(torch.tensor([token_ids]), use_cache=False).logits[0].float()
