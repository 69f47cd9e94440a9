"""A checkpoint's architecture, as data read from its headers; no weights and no torch."""

from __future__ import annotations

import msgspec


class RopeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding. ``kind`` is default, linear, dynamic, yarn, longrope or llama3; unused fields are None.

    ``rotary_dim`` is the number of leading head entries that rotate; ``interleaved`` rotates neighbours (GPT-J)
    instead of halves (NeoX).
    """

    kind: str = "default"
    theta: float = 10_000.0
    rotary_dim: int
    interleaved: bool = False
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float | None = None
    high_freq_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    short_factor: tuple[float, ...] | None = None
    long_factor: tuple[float, ...] | None = None


class PoolingFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a checkpoint's hidden states become one vector: kind "mean", "cls" or "last", then length 1 or as it is.

    ``prompt`` is put before every text.
    """

    kind: str
    normalize: bool = False
    prompt: str = ""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is. ``architecture`` is the family's file in device/models (llama, qwen2, gemma3 ...).

    ``layer_types`` has one of full, sliding_window, chunked_local per layer. ``sliding_window`` counts the token
    itself. ``weight_format`` is safetensors, gguf or dummy; ``stored_dtype`` is the main float type of the files.
    ``num_parameters`` and ``weight_bytes`` (as stored) come from the headers; ``bytes_by_type`` splits the latter of a
    GGUF file by its tensor types. ``norm_weight_offset`` is 1 where the norm multiplies by 1 + weight (Gemma's
    checkpoints as Hugging Face stores them), else 0. ``pooling`` is there where the checkpoint says how it pools.
    ``matryoshka_dimensions`` are the lengths that its vectors may be cut to, () any, None where nothing says they may.
    ``is_encoder``: every token sees every other, nothing is generated; ``num_labels`` are the outputs of its
    classifier, 0 for none. ``rope.rotary_dim`` 0: ``num_positions`` positions are learned, and the first token has that
    at ``first_position``.
    """

    architecture: str
    source_architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    max_position: int
    norm_eps: float
    rope: RopeFacts
    local_rope: RopeFacts | None = None
    hidden_act: str = "silu"
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    norm_weight_offset: float = 0.0
    embedding_scale: float = 1.0
    attention_scale: float | None = None
    attn_logit_softcap: float | None = None
    final_logit_softcap: float | None = None
    layer_types: tuple[str, ...] = ()
    sliding_window: int | None = None
    chunk_size: int | None = None
    weight_format: str = "safetensors"
    stored_dtype: str = "float32"
    num_parameters: int = 0
    weight_bytes: int = 0
    bytes_by_type: dict[str, int] = {}
    eos_token_ids: tuple[int, ...] = ()
    pooling: PoolingFacts | None = None
    matryoshka_dimensions: tuple[int, ...] | None = None
    is_encoder: bool = False
    num_positions: int = 0
    first_position: int = 0
    num_token_types: int = 0
    num_labels: int = 0
    bos_token_id: int | None = None
