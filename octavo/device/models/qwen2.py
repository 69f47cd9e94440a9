"""Qwen2 and Qwen2.5: pre-norm layers whose query, key and value projections have biases."""

from __future__ import annotations

from octavo.device.layers.weight_map import GGUF_NAMES, WeightMap
from octavo.device.models.decoder import BACKBONE_PREFIXES, Decoder, PreNormLayer, pre_norm_rules
from octavo.device.models.options import ModelOptions
from octavo.words.model_facts import ModelFacts


class Qwen2ForCausalLM(Decoder):
    """The facts carry the biases, and a sliding window in the upper layers where a checkpoint asks for it."""

    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        super().__init__(facts, options, PreNormLayer)
        self.weight_map = WeightMap(
            rules=pre_norm_rules(facts, options), prefixes=BACKBONE_PREFIXES, gguf_names=GGUF_NAMES
        )
