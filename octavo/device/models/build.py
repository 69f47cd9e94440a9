"""From a checkpoint's facts to a model with empty weights."""

from __future__ import annotations

from importlib import import_module
from typing import Protocol

from torch import Tensor, nn

from octavo.device.attention.context import ForwardContext
from octavo.device.layers.weight_map import WeightMap
from octavo.device.models.options import ModelOptions
from octavo.device.models.table import MODELS
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import AttentionSpec
from octavo.words.model_facts import ModelFacts


class CausalLM(Protocol):
    """A decoder-only language model as the worker uses it; an ``nn.Module`` whose weights the loader fills.

    ``weight_map`` says how checkpoint names become parameters, for the checkpoint's own format. A model may have a
    method ``compute_best`` as well, which gives the largest of each row's logits and its id (``ops/lm_head_best``)
    without logits that are kept; greedy requests are then served by it.
    """

    weight_map: WeightMap

    def forward(self, token_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """token_ids, positions: [T] int64 -> hidden states after the last norm, [T, hidden_size]."""
        ...

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size], the rows that need logits -> float32 [R, vocab_size]. Only with a head."""
        ...

    def kv_cache_specs(self) -> dict[str, AttentionSpec]:
        """What each attention layer asks of the cache, by layer name, in layer order."""
        ...


def build_model(facts: ModelFacts, options: ModelOptions) -> nn.Module:
    """Build the architecture's model (a CausalLM) with uninitialised parameters.

    Raises UnsupportedError if no file in device/models is for this architecture.
    """
    if facts.architecture not in MODELS:
        raise UnsupportedError(
            f"architecture {facts.architecture!r} ({facts.source_architecture}) is not supported; "
            f"supported are {', '.join(sorted(MODELS))}"
        )
    module_name, class_name = MODELS[facts.architecture].split(":")
    model_class = getattr(import_module(module_name), class_name)
    return model_class(facts, options)
