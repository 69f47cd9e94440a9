"""What a drafter's checkpoint is, as data read from its headers; no weights and no torch."""

from __future__ import annotations

import msgspec

from octavo.words.model_facts import ModelFacts


class DrafterFacts(msgspec.Struct, frozen=True, kw_only=True):
    """``network`` are the layers that a drafter runs: a draft model's, or those that a head has; Medusa's has none.

    EAGLE: ``projection_bias`` of the layer that joins token and feature; ``has_embedding``, or it takes the model's.
    Medusa: ``num_heads``, each of ``num_head_layers`` residual layers with or without ``head_bias``; ``naming`` is the
    checkpoint's format, medusa or vllm.
    """

    network: ModelFacts
    projection_bias: bool = False
    has_embedding: bool = True
    num_heads: int = 0
    num_head_layers: int = 0
    head_bias: bool = True
    naming: str = "medusa"
