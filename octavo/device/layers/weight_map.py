"""The weight map: where each tensor of a checkpoint goes in a model, as frozen data on the model.

A model states its map once, in the names Hugging Face gives its tensors; a table translates GGUF's names to those,
so one set of rules serves both file formats. The map lives here and not in ``device.loader`` because models state
it and the loader applies it, and those two do not import each other.

Names are patterns without regular expressions: a path segment in braces, ``{i}``, stands for one number, and the
same name in the target takes that number. A source that ends in ``*`` matches any rest (``Skip`` only). ::

    rows = num_heads * head_size, num_kv_heads * head_size, num_kv_heads * head_size
    attn = "model.layers.{i}.self_attn"
    WeightMap(
        rules=(
            *ROPE_TABLES,
            Rename("model.embed_tokens.weight", "embed_tokens.weight", shard=0),
            Stack(
                "layers.{i}.attention.qkv.weight",
                parts=((f"{attn}.q_proj.weight", rows[0]), (f"{attn}.k_proj.weight", rows[1]),
                       (f"{attn}.v_proj.weight", rows[2])),
                shard=0,
            ),
            Rename(f"{attn}.o_proj.weight", "layers.{i}.attention.o.weight", shard=1),
            Skip("lm_head.weight"),  # where it is tied to the embedding
        ),
        gguf_names=GGUF_NAMES,
        gguf_interleaved={f"{attn}.q_proj.weight": num_heads, f"{attn}.k_proj.weight": num_kv_heads},
    )
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Rename:
    """One tensor of the file fills one parameter.

    ``shard`` is the dimension that tensor parallelism splits, None where every rank holds the whole.
    """

    source: str
    target: str
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class Stack:
    """Several tensors of the file fill one parameter, one below the other along dimension 0.

    ``parts`` has (source, number of rows of the unsplit tensor) from the top down; the counts add up to the
    parameter's rows. ``shard`` is as in ``Rename`` and is applied to every part before stacking.
    """

    target: str
    parts: tuple[tuple[str, int], ...]
    shard: int | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """A tensor of the file that the model does not want: tied, recomputed, or of a part that is not run."""

    source: str


Rule = Rename | Stack | Skip


@dataclass(frozen=True, slots=True)
class WeightMap:
    """Everything the loader needs to know about a model's names; owned by the model, never changed.

    ``rules`` is in Hugging Face names without the prefixes of ``prefixes``: pairs (prefix as found, what to read in
    its place), first match wins, for checkpoints that wrap the same model ("language_model.model." -> "model.").
    ``gguf_names`` maps GGUF name patterns to Hugging Face name patterns; a GGUF name it lacks is looked up in
    ``rules`` as it is. ``gguf_interleaved`` maps Hugging Face names whose rows a GGUF file stores with the two rotary
    halves of each head interleaved (Llama's q and k) to their number of heads; loading puts the halves back, so
    that models always rotate halves (the NeoX form). Biases of such a projection are listed beside its weights.
    """

    rules: tuple[Rule, ...]
    prefixes: tuple[tuple[str, str], ...] = ()
    gguf_names: Mapping[str, str] = field(default_factory=dict)
    gguf_interleaved: Mapping[str, int] = field(default_factory=dict)


ROPE_TABLES: tuple[Skip, ...] = (
    Skip("model.layers.{i}.self_attn.rotary_emb.inv_freq"),
    Skip("model.rotary_emb.inv_freq"),
    Skip("rope_freqs.weight"),
    Skip("rope_factors_long.weight"),
    Skip("rope_factors_short.weight"),
)
"""Rotary tables in files: Octavo computes its own from ``ModelFacts``, which has read the GGUF ones."""

GGUF_NAMES: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.{i}.attn_norm.weight": "model.layers.{i}.input_layernorm.weight",
    "blk.{i}.attn_q.weight": "model.layers.{i}.self_attn.q_proj.weight",
    "blk.{i}.attn_q.bias": "model.layers.{i}.self_attn.q_proj.bias",
    "blk.{i}.attn_k.weight": "model.layers.{i}.self_attn.k_proj.weight",
    "blk.{i}.attn_k.bias": "model.layers.{i}.self_attn.k_proj.bias",
    "blk.{i}.attn_v.weight": "model.layers.{i}.self_attn.v_proj.weight",
    "blk.{i}.attn_v.bias": "model.layers.{i}.self_attn.v_proj.bias",
    "blk.{i}.attn_output.weight": "model.layers.{i}.self_attn.o_proj.weight",
    "blk.{i}.attn_output.bias": "model.layers.{i}.self_attn.o_proj.bias",
    "blk.{i}.attn_q_norm.weight": "model.layers.{i}.self_attn.q_norm.weight",
    "blk.{i}.attn_k_norm.weight": "model.layers.{i}.self_attn.k_norm.weight",
    "blk.{i}.ffn_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "blk.{i}.ffn_gate.weight": "model.layers.{i}.mlp.gate_proj.weight",
    "blk.{i}.ffn_gate.bias": "model.layers.{i}.mlp.gate_proj.bias",
    "blk.{i}.ffn_up.weight": "model.layers.{i}.mlp.up_proj.weight",
    "blk.{i}.ffn_up.bias": "model.layers.{i}.mlp.up_proj.bias",
    "blk.{i}.ffn_down.weight": "model.layers.{i}.mlp.down_proj.weight",
    "blk.{i}.ffn_down.bias": "model.layers.{i}.mlp.down_proj.bias",
}
"""GGUF's names of a pre-norm decoder (Llama, Mistral, Qwen2, Qwen3)."""

GGUF_SANDWICH_NORM_NAMES: Mapping[str, str] = {
    **GGUF_NAMES,
    "blk.{i}.post_attention_norm.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "blk.{i}.ffn_norm.weight": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "blk.{i}.post_ffw_norm.weight": "model.layers.{i}.post_feedforward_layernorm.weight",
}
"""GGUF's names of a decoder with norms before and after each half of a layer (Gemma 2 and 3)."""
