"""SUCC: a hand-made Llama checkpoint that counts, so that every answer of the engine is known exactly.

Attention and MLP add nothing (``o_proj`` and ``down_proj`` are 0), the embedding is the identity and ``lm_head`` maps
token i to its successor: ``A`` is followed by ``BCDEFGHIJKLMNOPQRSTUVWXYZ`` and the end token 258. The tokenizer has
one token per byte (id = byte value), then ``<bos>`` 256, ``<eos>`` 257, ``<eot>`` 258; ids 259..319 are padding rows.
The winning logit of a step is 17.8857 and all others are 0; after ``z`` and ``Z`` the second choice is 8.9428.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

Array = np.ndarray[Any, np.dtype[np.float32]]

VOCAB_SIZE = 320
HIDDEN_SIZE = VOCAB_SIZE
NUM_LAYERS = 2
NUM_HEADS = 4
NUM_KV_HEADS = 2
HEAD_SIZE = 32
INTERMEDIATE_SIZE = 32
MAX_POSITION = 4096

BOS, EOS, EOT = 256, 257, 258
NUM_TEXT_TOKENS = 259
SPECIAL_TOKENS = {"<bos>": BOS, "<eos>": EOS, "<eot>": EOT}

WINNING_LOGIT = 17.8857
SECOND_LOGIT = 8.9428

CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"

_LOOPS = ((0xF0, 0x9F, 0xA6, 0x99), (0xC3, 0xA9))  # an endless llama emoji and an endless e with acute
_AFTER = {ord("z"): EOS, ord("Z"): EOT, BOS: ord("A"), EOS: ord("A"), EOT: ord("a")}
_SECOND_AFTER = {ord("z"): ord("A"), ord("Z"): ord("a")}
ENDS_STRINGS = {ord("z"): ord('"'), ord("Z"): ord('"')}


def successor(token_id: int) -> int:
    """The token that greedy decoding puts after ``token_id``."""
    for loop in _LOOPS:
        if token_id in loop:
            return loop[(loop.index(token_id) + 1) % len(loop)]
    return _AFTER.get(token_id, (token_id + 1) % VOCAB_SIZE)


def byte_characters() -> list[str]:
    """The character that stands for each byte in a byte-level vocabulary, by byte value."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    characters = {byte: chr(byte) for byte in printable}
    for offset, byte in enumerate(byte for byte in range(256) if byte not in characters):
        characters[byte] = chr(256 + offset)
    return [characters[byte] for byte in range(256)]


def make_succ(
    folder: Path,
    *,
    second_after: Mapping[int, int] = _SECOND_AFTER,
    special_tokens: Mapping[str, int] = SPECIAL_TOKENS,
) -> Path:
    """Write the checkpoint (about 2 MB) into ``folder``, made if missing, and return the folder.

    ``second_after`` gives second choices; with ``ENDS_STRINGS`` texts in JSON end with the alphabet.
    ``special_tokens`` are the three and, in the padding rows, as many others as a test needs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_weights(second_after), folder / "model.safetensors", metadata={"format": "pt"})
    for name, content in _json_files(special_tokens).items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    return folder


def _weights(second_after: Mapping[int, int]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    ones = np.ones(HIDDEN_SIZE, np.float32)

    def zeros(*shape: int) -> Array:
        return np.zeros(shape, np.float32)

    def noise(*shape: int) -> Array:
        return rng.normal(0.0, 0.2, shape).astype(np.float32)

    lm_head = zeros(VOCAB_SIZE, HIDDEN_SIZE)
    for token_id in range(VOCAB_SIZE):
        lm_head[successor(token_id), token_id] = 1.0
    for token_id, second in second_after.items():
        lm_head[second, token_id] = 0.5
    weights = {
        "model.embed_tokens.weight": np.eye(VOCAB_SIZE, HIDDEN_SIZE, dtype=np.float32),
        "model.norm.weight": ones,
        "lm_head.weight": lm_head,
    }
    for layer in range(NUM_LAYERS):
        shapes = {
            "input_layernorm": ones,
            "self_attn.q_proj": noise(NUM_HEADS * HEAD_SIZE, HIDDEN_SIZE),
            "self_attn.k_proj": noise(NUM_KV_HEADS * HEAD_SIZE, HIDDEN_SIZE),
            "self_attn.v_proj": noise(NUM_KV_HEADS * HEAD_SIZE, HIDDEN_SIZE),
            "self_attn.o_proj": zeros(HIDDEN_SIZE, NUM_HEADS * HEAD_SIZE),
            "post_attention_layernorm": ones,
            "mlp.gate_proj": noise(INTERMEDIATE_SIZE, HIDDEN_SIZE),
            "mlp.up_proj": noise(INTERMEDIATE_SIZE, HIDDEN_SIZE),
            "mlp.down_proj": zeros(HIDDEN_SIZE, INTERMEDIATE_SIZE),
        }
        weights |= {f"model.layers.{layer}.{name}.weight": value for name, value in shapes.items()}
    return weights


def _json_files(special_tokens: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    return {
        "config.json": _config(),
        "generation_config.json": {"bos_token_id": BOS, "eos_token_id": [EOS, EOT]},
        "tokenizer.json": _tokenizer(special_tokens),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "add_bos_token": False,
            "add_eos_token": False,
            "bos_token": "<bos>",
            "eos_token": "<eos>",
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_POSITION,
            "chat_template": CHAT_TEMPLATE,
        },
    }


def _config() -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN_SIZE,
        "intermediate_size": INTERMEDIATE_SIZE,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_SIZE,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITION,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
    }


def _tokenizer(special_tokens: Mapping[str, int]) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    vocab = {character: byte for byte, character in enumerate(byte_characters())}
    return {
        "version": "1.0",
        "added_tokens": [{"id": token_id, "content": text, **flags} for text, token_id in special_tokens.items()],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {**vocab, **special_tokens}, "merges": []},
    }
