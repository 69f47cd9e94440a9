"""EAGLE's head: a layer of Llama that guesses the model's next feature from a token and the feature before it.

The feature is the model's hidden state after its last norm; the model's own output head reads the guessed one (Li et
al., "EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty", 2024). Checkpoints have the authors' names:
``fc``, ``layers.0`` without ``input_layernorm``, and mostly ``embed_tokens``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from octavo.device.attention.context import ForwardContext
from octavo.device.layers.embedding import Embedding
from octavo.device.layers.weight_map import ROPE_TABLES, Rename, Rule, Skip, WeightMap
from octavo.device.models.decoder import ModelParts, attention_rules, mlp_rules
from octavo.device.models.options import ModelOptions
from octavo.device.ops.kernels import Kernels
from octavo.words.drafter_facts import DrafterFacts


class EagleLayer(nn.Module):
    """x + attention(x), then x + mlp(norm(x)): what comes in is not normalised."""

    def __init__(self, parts: ModelParts, kernels: Kernels) -> None:
        super().__init__()
        self._kernels = kernels
        self.attention = parts.attention(0)
        self.mlp_norm = parts.norm()
        self.mlp = parts.mlp()

    def forward(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        normed, residual = self.mlp_norm.add(self.attention(x, positions, ctx), x, self.mlp.gate_up)
        result: Tensor = self._kernels.custom_op(_add, residual, self.mlp(normed))
        return result


class EagleHead(nn.Module):
    """``embedding`` is the model's, for a checkpoint that has none, and ``compute_logits`` its output head."""

    def __init__(
        self,
        facts: DrafterFacts,
        options: ModelOptions,
        embedding: Embedding,
        compute_logits: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__()
        self.compute_logits = compute_logits
        self._kernels = options.kernels
        parts = ModelParts(facts.network, options)
        size = facts.network.hidden_size
        self.fc = parts.linear(2 * size, size, bias=facts.projection_bias)
        self.layers = nn.ModuleList([EagleLayer(parts, options.kernels)])
        if facts.has_embedding:
            self.embed = parts.embedding()
        else:
            self._borrowed = (embedding,)  # in a tuple: its weights are not ours to load
        self.weight_map = WeightMap(
            rules=_rules(facts), prefixes=(("layers.", "model.layers."), ("embed_tokens.", "model.embed_tokens."))
        )

    def forward(self, token_ids: Tensor, positions: Tensor, features: Tensor, ctx: ForwardContext) -> Tensor:
        """Features [T, hidden_size] of positions with the tokens that follow them -> those of the next positions."""
        embed = self.embed if hasattr(self, "embed") else self._borrowed[0]
        x: Tensor = self.fc(self._kernels.custom_op(_join, embed(token_ids), features))
        return self.layers[0](x, positions, ctx)


def _join(embedded: Tensor, features: Tensor) -> Tensor:
    return torch.cat((embedded, features), dim=-1)


def _add(residual: Tensor, more: Tensor) -> Tensor:
    return (residual + more).to(more.dtype)


def _rules(facts: DrafterFacts) -> tuple[Rule, ...]:
    rules: list[Rule] = [
        *ROPE_TABLES,
        Skip("lm_head.weight"),  # the model's own is used
        Rename("fc.weight", "fc.weight"),
        Rename("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.weight"),
        *attention_rules(facts.network),
        *mlp_rules(facts.network),
    ]
    if facts.projection_bias:
        rules.append(Rename("fc.bias", "fc.bias"))
    if facts.has_embedding:
        rules.append(Rename("model.embed_tokens.weight", "embed.weight"))
    return tuple(rules)
