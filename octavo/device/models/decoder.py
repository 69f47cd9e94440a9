"""What decoder-only families share, in the words of ``device/ops``; each family's file says what it is made of.

Shapes: T tokens of a step. Model code neither reads a tensor's values nor the number of tokens, so that a forward
can be recorded once and replayed at any size.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from octavo.device.attention.context import ForwardContext
from octavo.device.layers.attention import Attention, attention_layers
from octavo.device.layers.embedding import Embedding, LMHead, VocabWeight
from octavo.device.layers.linear import Linear
from octavo.device.layers.mlp import GatedMLP
from octavo.device.layers.norm import RMSNorm
from octavo.device.layers.rotary import mean_rotation, rope_table
from octavo.device.layers.weight_map import ROPE_TABLES, Rename, Rule, Skip, Stack
from octavo.device.models.options import ModelOptions
from octavo.device.ops.paged_attention import AttentionOptions
from octavo.device.ops.qkv_rope_write import HeadNorm
from octavo.device.ops.rope import RopeTable
from octavo.words.kv_cache_spec import AttentionSpec
from octavo.words.model_facts import ModelFacts


class ModelParts:
    """Makes the parts of one model from its facts and options; parts of equal kind share their rotary table."""

    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        self.facts = facts
        self.options = options
        self.rope = rope_table(facts.rope, options.max_model_len, facts.max_position)
        local = facts.local_rope
        self.local_rope = rope_table(local, options.max_model_len, facts.max_position) if local else self.rope

    def norm(self, width: int | None = None) -> RMSNorm:
        facts = self.facts
        return RMSNorm(
            width or facts.hidden_size,
            facts.norm_eps,
            dtype=self.options.dtype,
            kernels=self.options.kernels,
            weight_offset=facts.norm_weight_offset,
        )

    def linear(self, in_features: int, out_features: int, *, bias: bool, gated: bool = False) -> Linear:
        options = self.options
        return Linear(
            in_features,
            out_features,
            bias=bias,
            dtype=options.dtype,
            method=options.quantization,
            kernels=options.kernels,
            gated=gated,
        )

    def mlp(self) -> GatedMLP:
        facts = self.facts
        return GatedMLP(
            self.linear(facts.hidden_size, 2 * facts.intermediate_size, bias=facts.mlp_bias, gated=True),
            self.linear(facts.intermediate_size, facts.hidden_size, bias=facts.mlp_bias),
            activation=facts.hidden_act,
            kernels=self.options.kernels,
        )

    def embedding(self) -> Embedding:
        """The token embedding; rows that are the output head's too have its format."""
        facts, options = self.facts, self.options
        is_head_too = options.has_head and facts.tie_word_embeddings
        return Embedding(
            facts.vocab_size,
            facts.hidden_size,
            dtype=options.dtype,
            method=options.head_quantization if is_head_too else options.embedding_quantization,
            kernels=options.kernels,
            scale=facts.embedding_scale,
        )

    def lm_head(self, embedding: Embedding) -> LMHead:
        facts, options = self.facts, self.options
        weight: VocabWeight = embedding
        if not facts.tie_word_embeddings:
            method = options.head_quantization
            weight = VocabWeight(facts.vocab_size, facts.hidden_size, dtype=options.dtype, method=method)
        return LMHead(weight, kernels=options.kernels, softcap=facts.final_logit_softcap)

    def attention(self, index: int) -> SelfAttention:
        windowed = self._layer_type(index) == "sliding_window"
        return SelfAttention(f"layers.{index}.attention", self, self._attention_options(index), windowed)

    def _layer_type(self, index: int) -> str:
        return self.facts.layer_types[index] if self.facts.layer_types else "full"

    def _attention_options(self, index: int) -> AttentionOptions:
        facts, layer_type = self.facts, self._layer_type(index)
        return AttentionOptions(
            num_heads=facts.num_heads,
            num_kv_heads=facts.num_kv_heads,
            head_size=facts.head_size,
            scale=facts.head_size**-0.5 if facts.attention_scale is None else facts.attention_scale,
            sliding_window=facts.sliding_window if layer_type == "sliding_window" else None,
            chunk_size=facts.chunk_size if layer_type == "chunked_local" else None,
            softcap=facts.attn_logit_softcap,
        )


class SelfAttention(nn.Module):
    """Attention with its projections: queries, keys and values as one matrix, optional q/k norms, rotation."""

    def __init__(self, name: str, parts: ModelParts, attention: AttentionOptions, windowed: bool) -> None:
        super().__init__()
        facts, options = parts.facts, parts.options
        rows = qkv_rows(facts)
        self.facts = facts
        self.dtype = options.dtype
        self.kernels = options.kernels
        self.qkv = parts.linear(facts.hidden_size, sum(rows), bias=facts.attention_bias)
        self.out = parts.linear(rows[0], facts.hidden_size, bias=facts.attention_out_bias)
        self.q_norm = parts.norm(facts.head_size) if facts.qk_norm else None
        self.k_norm = parts.norm(facts.head_size) if facts.qk_norm else None
        self.rope: RopeTable = parts.local_rope if windowed else parts.rope
        self.attention = Attention(name, attention, options.attention, options.kv_cache_dtype)

    def forward(self, x: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """x: [T, hidden_size], or what a norm made for ``qkv`` -> [T, hidden_size]; stores keys and values."""
        attention = self.attention
        slots = attention.metadata(ctx).slot_mapping
        query = self.kernels.qkv_rope_write(
            x,
            self.qkv.operand,
            positions,
            self.rope,
            attention.kv_cache,
            slots,
            self._head_norm(),
            attention.key_offset,
        )
        return self.out(attention(query, ctx))

    def model_loaded(self) -> None:
        """Where keys have a large part in common, their bias, a cache of few bits would have few steps for the rest."""
        attention = self.attention
        has_bias = self.facts.attention_bias and not self.facts.qk_norm
        if has_bias and attention.kv_cache_dtype != torch.float32 and attention.may_offset_keys():
            attention.key_offset = mean_rotation(self._key_bias(), self.rope)

    def _key_bias(self) -> Tensor:
        """[num_kv_heads, head_size]: what the projection, whose weights may be packed, makes of zeros."""
        zeros = torch.zeros(1, self.qkv.in_features, dtype=self.dtype)
        rows = qkv_rows(self.facts)
        return self.qkv(zeros).split(rows, dim=1)[1].unflatten(1, (self.facts.num_kv_heads, -1))[0]

    def _head_norm(self) -> HeadNorm | None:
        if self.q_norm is None or self.k_norm is None:
            return None
        return HeadNorm(self.q_norm.weight, self.k_norm.weight, self.q_norm.eps, self.q_norm.weight_offset)


class PreNormLayer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); the sums live in ``residual``."""

    def __init__(self, parts: ModelParts, index: int) -> None:
        super().__init__()
        self.attention_norm = parts.norm()
        self.attention = parts.attention(index)
        self.mlp_norm = parts.norm()
        self.mlp = parts.mlp()

    def forward(
        self, x: Tensor, residual: Tensor | None, positions: Tensor, ctx: ForwardContext
    ) -> tuple[Tensor, Tensor]:
        """Return what is still to be added to the residual stream, and the stream; None before the first layer."""
        normed, residual = enter(self.attention_norm, x, residual, self.attention.qkv)
        attended = self.attention(normed, positions, ctx)
        normed, residual = self.mlp_norm.add(attended, residual, self.mlp.gate_up)
        return self.mlp(normed), residual


def enter(norm: RMSNorm, x: Tensor, residual: Tensor | None, reader: Linear | None = None) -> tuple[Tensor, Tensor]:
    """Add ``x`` to the residual stream, or start it with ``x``; return it normalised (for ``reader``), and it."""
    return (norm(x, reader), x) if residual is None else norm.add(x, residual, reader)


class Decoder(nn.Module):
    """Embedding, layers, last norm and output head: all of a causal language model but what its layers are."""

    def __init__(
        self, facts: ModelFacts, options: ModelOptions, make_layer: Callable[[ModelParts, int], nn.Module]
    ) -> None:
        super().__init__()
        parts = ModelParts(facts, options)
        self.embed = parts.embedding()
        self.layers = nn.ModuleList(make_layer(parts, index) for index in range(facts.num_layers))
        self.norm = parts.norm()
        if options.has_head:
            self.lm_head = parts.lm_head(self.embed)

    def forward(self, token_ids: Tensor, positions: Tensor, ctx: ForwardContext) -> Tensor:
        """token_ids, positions: [T] int64 -> hidden states after the last norm, [T, hidden_size]."""
        x, residual = ctx.with_given(self.embed(token_ids)), None
        for layer in self.layers:
            x, residual = layer(x, residual, positions, ctx)
        return enter(self.norm, x, residual)[0]

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size] -> float32 [R, vocab_size]."""
        return self.lm_head(hidden)

    def compute_best(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size] -> float64 [R, 2], the largest of a row's logits and its id."""
        return self.lm_head.best(hidden)

    def kv_cache_specs(self) -> dict[str, AttentionSpec]:
        """What each attention layer asks of the cache, by layer name, in layer order."""
        return {name: layer.kv_cache_spec() for name, layer in attention_layers(self).items()}


def qkv_rows(facts: ModelFacts) -> tuple[int, int, int]:
    """Rows of the query, key and value projections."""
    key_value = facts.num_kv_heads * facts.head_size
    return facts.num_heads * facts.head_size, key_value, key_value


BACKBONE_PREFIXES = tuple((name, f"model.{name}") for name in ("embed_tokens.", "layers.", "norm."))
"""How a checkpoint begins its names that was saved without an output head, as those that only embed are."""


def embedding_rules(facts: ModelFacts, options: ModelOptions) -> tuple[Rule, ...]:
    """Weights outside the layers."""
    has_own_head = options.has_head and not facts.tie_word_embeddings
    head = Rename("lm_head.weight", "lm_head.rows.weight", shard=0) if has_own_head else Skip("lm_head.weight")
    return (
        *ROPE_TABLES,
        Rename("model.embed_tokens.weight", "embed.weight", shard=0),
        Rename("model.norm.weight", "norm.weight"),
        head,
    )


def attention_rules(facts: ModelFacts) -> tuple[Rule, ...]:
    """Weights of SelfAttention: the projections with the biases and q/k norms that the facts tell of."""
    source, target = "model.layers.{i}.self_attn", "layers.{i}.attention"
    rules: list[Rule] = []
    for kind in ("weight", "bias") if facts.attention_bias else ("weight",):
        parts = zip((f"{source}.{name}_proj.{kind}" for name in "qkv"), qkv_rows(facts), strict=True)
        rules.append(Stack(f"{target}.qkv.{kind}", parts=tuple(parts), shard=0))
    rules.append(Rename(f"{source}.o_proj.weight", f"{target}.out.weight", shard=1))
    if facts.attention_out_bias:
        rules.append(Rename(f"{source}.o_proj.bias", f"{target}.out.bias"))
    if facts.qk_norm:
        rules += [Rename(f"{source}.{name}_norm.weight", f"{target}.{name}_norm.weight") for name in "qk"]
    return tuple(rules)


def mlp_rules(facts: ModelFacts) -> tuple[Rule, ...]:
    """Weights of GatedMLP."""
    source, target = "model.layers.{i}.mlp", "layers.{i}.mlp"
    rows = facts.intermediate_size
    rules: list[Rule] = []
    for kind in ("weight", "bias") if facts.mlp_bias else ("weight",):
        parts = ((f"{source}.gate_proj.{kind}", rows), (f"{source}.up_proj.{kind}", rows))
        rules.append(Stack(f"{target}.gate_up.{kind}", parts=parts, shard=0))
    rules.append(Rename(f"{source}.down_proj.weight", f"{target}.down.weight", shard=1))
    if facts.mlp_bias:
        rules.append(Rename(f"{source}.down_proj.bias", f"{target}.down.bias"))
    return tuple(rules)


def pre_norm_rules(facts: ModelFacts, options: ModelOptions) -> tuple[Rule, ...]:
    """All weights of a decoder of PreNormLayers."""
    norms = (
        Rename("model.layers.{i}.input_layernorm.weight", "layers.{i}.attention_norm.weight"),
        Rename("model.layers.{i}.post_attention_layernorm.weight", "layers.{i}.mlp_norm.weight"),
    )
    return (*embedding_rules(facts, options), *attention_rules(facts), *norms, *mlp_rules(facts))


def interleaved_projections(facts: ModelFacts) -> dict[str, int]:
    """Projections whose rows the GGUF files of Llama and Mistral interleave, with their number of heads."""
    source = "model.layers.{i}.self_attn"
    heads = {"q": facts.num_heads, "k": facts.num_kv_heads}
    return {f"{source}.{name}_proj.{kind}": count for name, count in heads.items() for kind in ("weight", "bias")}
