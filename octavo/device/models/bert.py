"""BERT and its kin: encoders whose hidden states are pooled, with or without a classifier behind them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from octavo.device.attention.context import ForwardContext
from octavo.device.layers.linear import Linear
from octavo.device.layers.norm import LayerNorm
from octavo.device.layers.weight_map import Rename, Rule, Skip, Stack, WeightMap
from octavo.device.models.options import ModelOptions
from octavo.device.ops.linear_activation import ACTIVATIONS
from octavo.words.errors import UnsupportedError
from octavo.words.kv_cache_spec import AttentionSpec
from octavo.words.model_facts import ModelFacts


@dataclass(frozen=True, kw_only=True)
class Names:
    """What a family calls its tensors, and what its classifier does to the first hidden state.

    ``skipped`` are heads that guess words.
    """

    layer: str = "encoder.layer.{i}"
    qkv: tuple[str, str, str] = ("attention.self.query", "attention.self.key", "attention.self.value")
    out: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"
    pooler: str = "pooler.dense"
    classifier: str = "classifier"
    skipped: tuple[str, ...] = ("cls",)
    squash: Callable[[Tensor], Tensor] = torch.tanh


NAMES = {
    "bert": Names(),
    "roberta": Names(pooler="classifier.dense", classifier="classifier.out_proj", skipped=("lm_head",)),
    "distilbert": Names(
        layer="transformer.layer.{i}",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        out="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        mlp_norm="output_layer_norm",
        pooler="pre_classifier",
        skipped=("vocab_transform", "vocab_layer_norm", "vocab_projector"),
        squash=torch.relu,
    ),
}


class BertModel(nn.Module):
    """Post-norm encoder with learned positions (Devlin et al., 2018); RoBERTa and DistilBERT are that too."""

    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        super().__init__()
        if facts.hidden_act not in ACTIVATIONS:
            raise UnsupportedError(f"activation {facts.hidden_act!r} is not one of {', '.join(ACTIVATIONS)}")
        width, dtype = facts.hidden_size, options.dtype
        self.kernels = options.kernels
        self.words = _table(facts.vocab_size, width, dtype)
        self.positions = _table(facts.num_positions, width, dtype)
        if facts.num_token_types:
            self.token_types = _table(facts.num_token_types, width, dtype)
        else:
            self.register_buffer("token_types", torch.zeros(1, width, dtype=dtype), persistent=False)
        self.first_position = facts.first_position
        self.norm = _norm(facts, options)
        self.layers = nn.ModuleList(BertLayer(facts, options) for _ in range(facts.num_layers))
        if facts.num_labels:
            self.pooler = _linear(width, width, options)
            self.classifier = _linear(width, facts.num_labels, options)
        self.squash = NAMES[facts.architecture].squash
        self.weight_map = WeightMap(rules=_rules(facts), prefixes=tuple((f"{name}.", "") for name in NAMES))

    def forward(self, token_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """token_ids, positions: [T] int64 -> hidden states [T, hidden_size]."""
        ids = (token_ids, positions, ctx.token_types)
        tables = (self.words, self.positions[self.first_position :], self.token_types)
        x = self.kernels.embedding_layer_norm(ids, tables, self.norm.weight, self.norm.bias, self.norm.eps)
        for layer in self.layers:
            x = layer(x, ctx)
        return x

    def classify(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size], first rows of texts -> float32 [R, num_labels]."""
        return self.classifier(self.squash(self.pooler(hidden))).float()

    def kv_cache_specs(self) -> dict[str, AttentionSpec]:
        """Nothing is kept."""
        return {}


class BertLayer(nn.Module):
    """norm(x + attention(x)), then norm(x + mlp(x))."""

    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        super().__init__()
        width = facts.hidden_size
        self.kernels = options.kernels
        self.num_heads, self.scale = facts.num_heads, facts.head_size**-0.5
        self.activation = facts.hidden_act
        self.qkv = _linear(width, 3 * width, options)
        self.out = _linear(width, width, options)
        self.attention_norm = _norm(facts, options)
        self.up = _linear(width, facts.intermediate_size, options)
        self.down = _linear(facts.intermediate_size, width, options)
        self.mlp_norm = _norm(facts, options)

    def forward(self, x: Tensor, ctx: ForwardContext) -> Tensor:
        """x: [T, hidden_size] -> the same shape."""
        attended = self.kernels.encoder_attention(self.qkv(x), ctx.query_start_loc, self.num_heads, self.scale)
        x = self.attention_norm(self.out(attended), x)
        return self.mlp_norm(self.down(self.kernels.linear_activation(x, self.up.operand, self.activation)), x)


def _table(rows: int, width: int, dtype: torch.dtype) -> nn.Parameter:
    return nn.Parameter(torch.empty(rows, width, dtype=dtype), requires_grad=False)


def _linear(in_features: int, out_features: int, options: ModelOptions) -> Linear:
    return Linear(
        in_features,
        out_features,
        bias=True,
        dtype=options.dtype,
        method=options.quantization,
        kernels=options.kernels,
    )


def _norm(facts: ModelFacts, options: ModelOptions) -> LayerNorm:
    return LayerNorm(facts.hidden_size, facts.norm_eps, dtype=options.dtype, kernels=options.kernels)


def _rules(facts: ModelFacts) -> tuple[Rule, ...]:
    names, width = NAMES[facts.architecture], facts.hidden_size
    rules: list[Rule] = [
        Rename("embeddings.word_embeddings.weight", "words"),
        Rename("embeddings.position_embeddings.weight", "positions"),
        Skip("embeddings.position_ids"),
        *(Skip(f"{head}.*") for head in names.skipped),
        *_norm_rules("embeddings.LayerNorm", "norm"),
        *_norm_rules(f"{names.layer}.{names.attention_norm}", "layers.{i}.attention_norm"),
        *_norm_rules(f"{names.layer}.{names.mlp_norm}", "layers.{i}.mlp_norm"),
    ]
    if facts.num_token_types:
        rules.append(Rename("embeddings.token_type_embeddings.weight", "token_types"))
    for kind in ("weight", "bias"):
        parts = tuple((f"{names.layer}.{name}.{kind}", width) for name in names.qkv)
        rules += [
            Stack(f"layers.{{i}}.qkv.{kind}", parts=parts),
            Rename(f"{names.layer}.{names.out}.{kind}", f"layers.{{i}}.out.{kind}"),
            Rename(f"{names.layer}.{names.up}.{kind}", f"layers.{{i}}.up.{kind}"),
            Rename(f"{names.layer}.{names.down}.{kind}", f"layers.{{i}}.down.{kind}"),
        ]
        if facts.num_labels:
            rules += [
                Rename(f"{names.pooler}.{kind}", f"pooler.{kind}"),
                Rename(f"{names.classifier}.{kind}", f"classifier.{kind}"),
            ]
    return (*rules, *(() if facts.num_labels else (Skip("pooler.*"),)))


def _norm_rules(source: str, target: str) -> tuple[Rule, ...]:
    return tuple(Rename(f"{source}.{kind}", f"{target}.{kind}") for kind in ("weight", "bias"))
