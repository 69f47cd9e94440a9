"""Gemma 3, the text model: five sliding-window layers to one of full attention, norms before and after each half."""

from __future__ import annotations

from torch import Tensor, nn

from octavo.device.attention.context import ForwardContext
from octavo.device.layers.weight_map import GGUF_SANDWICH_NORM_NAMES, Rename, Rule, Skip, WeightMap
from octavo.device.models.decoder import (
    Decoder,
    ModelParts,
    attention_rules,
    embedding_rules,
    enter,
    mlp_rules,
)
from octavo.device.models.options import ModelOptions
from octavo.words.model_facts import ModelFacts

PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
"""How checkpoints of the vision models wrap the text model."""


class SandwichNormLayer(nn.Module):
    """x + norm(attention(norm(x))), then x + norm(mlp(norm(x))); the sums live in ``residual``."""

    def __init__(self, parts: ModelParts, index: int) -> None:
        super().__init__()
        self.attention_norm = parts.norm()
        self.attention = parts.attention(index)
        self.post_attention_norm = parts.norm()
        self.mlp_norm = parts.norm()
        self.mlp = parts.mlp()
        self.post_mlp_norm = parts.norm()

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, ctx: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        """Return what is still to be added to the residual stream, and the stream; None before the first layer."""
        normed, residual = enter(self.attention_norm, x, residual, self.attention.qkv)
        attended = self.post_attention_norm(self.attention(normed, positions, ctx))
        normed, residual = self.mlp_norm.add(attended, residual, self.mlp.gate_up)
        return self.post_mlp_norm(self.mlp(normed)), residual


class Gemma3ForCausalLM(Decoder):
    """The facts carry the layer types, both rotary embeddings, the embedding's and the attention's scale.

    Norms multiply by 1 + weight in Hugging Face checkpoints; GGUF files have the 1 added (``norm_weight_offset``).
    """

    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        super().__init__(facts, options, SandwichNormLayer)
        self.weight_map = WeightMap(
            rules=(*embedding_rules(facts, options), *attention_rules(facts), *_norm_rules(), *mlp_rules(facts)),
            prefixes=PREFIXES,
            gguf_names=GGUF_SANDWICH_NORM_NAMES,
        )


def _norm_rules() -> tuple[Rule, ...]:
    names = {
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "mlp_norm",
        "post_feedforward_layernorm": "post_mlp_norm",
    }
    vision = (Skip("model.vision_tower.*"), Skip("vision_tower.*"), Skip("model.multi_modal_projector.*"))
    layers = (
        Rename(f"model.layers.{{i}}.{found}.weight", f"layers.{{i}}.{ours}.weight") for found, ours in names.items()
    )
    return (*vision, Skip("multi_modal_projector.*"), *layers)
