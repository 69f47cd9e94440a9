"""Qwen3 (dense): pre-norm layers, no projection biases, RMS norms over each query and key head."""

from __future__ import annotations

from octavo.device.layers.weight_map import GGUF_NAMES, WeightMap
from octavo.device.models.decoder import BACKBONE_PREFIXES, Decoder, PreNormLayer, pre_norm_rules
from octavo.device.models.options import ModelOptions
from octavo.words.model_facts import ModelFacts


class Qwen3ForCausalLM(Decoder):
    """The facts carry the head norms and a head size that is not hidden_size / num_heads."""

    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        super().__init__(facts, options, PreNormLayer)
        self.weight_map = WeightMap(
            rules=pre_norm_rules(facts, options), prefixes=BACKBONE_PREFIXES, gguf_names=GGUF_NAMES
        )
