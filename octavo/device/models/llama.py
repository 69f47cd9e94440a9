"""Llama 2 and 3, and the many models of their shape (SmolLM2, Yi ...): pre-norm layers, GQA, SiLU-gated MLP."""

from __future__ import annotations

from octavo.device.layers.weight_map import GGUF_NAMES, WeightMap
from octavo.device.models.decoder import (
    BACKBONE_PREFIXES,
    Decoder,
    PreNormLayer,
    interleaved_projections,
    pre_norm_rules,
)
from octavo.device.models.options import ModelOptions
from octavo.words.model_facts import ModelFacts


class LlamaForCausalLM(Decoder):
    """Rotary scaling, tied embeddings and biases are as the facts say."""

    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        super().__init__(facts, options, PreNormLayer)
        self.weight_map = WeightMap(
            rules=pre_norm_rules(facts, options),
            prefixes=BACKBONE_PREFIXES,
            gguf_names=GGUF_NAMES,
            gguf_interleaved=interleaved_projections(facts),
        )
