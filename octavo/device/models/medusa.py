"""Medusa heads: each guesses one token further ahead from the model's last hidden state (Cai et al., 2024).

Checkpoints come in two formats: that of the authors (``0.0.linear.weight`` ... ``0.1.weight``, with or without
``medusa_head.`` before it), and vLLM's (``blocks.0.layers.0.weight`` ... ``lm_heads.0.weight``).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.device.layers.embedding import LMHead, VocabWeight
from octavo.device.layers.linear import Linear
from octavo.device.layers.weight_map import Rename, Rule, WeightMap
from octavo.device.models.options import ModelOptions
from octavo.words.drafter_facts import DrafterFacts


class MedusaHead(nn.Module):
    """x + silu(linear(x)) for each layer, then an output head of its own."""

    def __init__(self, facts: DrafterFacts, options: ModelOptions) -> None:
        super().__init__()
        size, vocab_size = facts.network.hidden_size, facts.network.vocab_size
        common = {"dtype": options.dtype, "method": options.quantization}
        self.layers = nn.ModuleList(
            Linear(size, size, bias=facts.head_bias, kernels=options.kernels, **common)
            for _ in range(facts.num_head_layers)
        )
        rows = VocabWeight(vocab_size, size, dtype=options.dtype, method=options.head_quantization)
        self.lm_head = LMHead(rows, kernels=options.kernels)

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size] -> float32 logits [R, vocab_size]."""
        for layer in self.layers:
            hidden = hidden + torch.nn.functional.silu(layer(hidden))
        logits: Tensor = self.lm_head(hidden)
        return logits


class MedusaHeads(nn.Module):
    """Head i says the token after next and i more."""

    def __init__(self, facts: DrafterFacts, options: ModelOptions) -> None:
        super().__init__()
        self.heads = nn.ModuleList(MedusaHead(facts, options) for _ in range(facts.num_heads))
        self.weight_map = WeightMap(rules=_rules(facts), prefixes=_prefixes(facts))


def _rules(facts: DrafterFacts) -> tuple[Rule, ...]:
    layer = "blocks.{i}.layers.{j}" + ("" if facts.naming == "vllm" else ".linear")
    kinds = ("weight", "bias") if facts.head_bias else ("weight",)
    rules = [Rename(f"{layer}.{kind}", "heads.{i}.layers.{j}." + kind) for kind in kinds]
    return (*rules, Rename("lm_heads.{i}.weight", "heads.{i}.lm_head.rows.weight"))


def _prefixes(facts: DrafterFacts) -> tuple[tuple[str, str], ...]:
    """The authors' names, to which numbers alone tell a head's layers from its output head, as vLLM's."""
    if facts.naming == "vllm":
        return ()
    return tuple(
        (f"{outer}{head}.{inner}", name)
        for outer in ("medusa_head.", "")
        for head in range(facts.num_heads)
        for inner, name in ((f"{facts.num_head_layers}.", f"lm_heads.{head}."), ("", f"blocks.{head}.layers."))
    )
