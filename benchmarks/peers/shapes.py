"""A GGUF file with the shape of a model one does not have and random weights, for run.py.

    python benchmarks/peers/shapes.py llama-3.2-1b q8_0 /tmp/llama-1b.gguf
    python benchmarks/peers/run.py --model /tmp/llama-1b.gguf --precisions "the file" --peers llama.cpp \\
        --workloads single,prompt512,context8k --kv-cache int8

The weights are blocks of random bits whose scales give them the spread of trained ones; the tokenizer is that of
another model, filled up with names nobody writes. Needs the packages of the tests (gguf).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from octavo.checkpoint.resolve import resolve_model

SPREAD = 0.02
LONGEST = 40_960
TYPES = {
    "q8_0": (gguf.GGMLQuantizationType.Q8_0, 73.9),
    "q4_0": (gguf.GGMLQuantizationType.Q4_0, 4.6),
}
"""Block type, and the standard deviation of its whole numbers when all bits are random."""


@dataclass(frozen=True)
class Shape:
    architecture: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    rope_theta: float
    tied: bool
    attention_bias: bool = False

    def matrices(self) -> Iterator[tuple[str, int, int]]:
        """Every matrix: its name, rows and columns."""
        queries, keys = self.num_heads * self.head_size, self.num_kv_heads * self.head_size
        yield "token_embd", self.vocab_size, self.hidden_size
        if not self.tied:
            yield "output", self.vocab_size, self.hidden_size
        for layer in range(self.num_layers):
            yield f"blk.{layer}.attn_q", queries, self.hidden_size
            yield f"blk.{layer}.attn_k", keys, self.hidden_size
            yield f"blk.{layer}.attn_v", keys, self.hidden_size
            yield f"blk.{layer}.attn_output", self.hidden_size, queries
            yield f"blk.{layer}.ffn_gate", self.intermediate_size, self.hidden_size
            yield f"blk.{layer}.ffn_up", self.intermediate_size, self.hidden_size
            yield f"blk.{layer}.ffn_down", self.hidden_size, self.intermediate_size

    def vectors(self) -> Iterator[tuple[str, int]]:
        """Every norm and bias: its name with its ending, and its size."""
        yield "output_norm.weight", self.hidden_size
        for layer in range(self.num_layers):
            yield f"blk.{layer}.attn_norm.weight", self.hidden_size
            yield f"blk.{layer}.ffn_norm.weight", self.hidden_size
            if self.attention_bias:
                yield f"blk.{layer}.attn_q.bias", self.num_heads * self.head_size
                yield f"blk.{layer}.attn_k.bias", self.num_kv_heads * self.head_size
                yield f"blk.{layer}.attn_v.bias", self.num_kv_heads * self.head_size


SHAPES = {
    "llama-3.2-1b": Shape("llama", 16, 2048, 8192, 32, 8, 64, 128_256, 500_000.0, tied=True),
    "qwen2.5-7b": Shape("qwen2", 28, 3584, 18_944, 28, 4, 128, 152_064, 1_000_000.0, tied=False, attention_bias=True),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=TYPES)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", default="smollm2-135m", help="a GGUF model whose tokenizer is written in")
    args = parser.parse_args(argv)
    write(SHAPES[args.shape], args.type, args.file, Path(resolve_model(args.tokenizer).path))
    return 0


def write(shape: Shape, kind: str, path: Path, tokenizer: Path) -> None:
    """Write the file, one tensor in memory at a time."""
    block_type, deviation = TYPES[kind]
    writer = gguf.GGUFWriter(path, shape.architecture)
    describe(writer, shape)
    copy_tokenizer(writer, gguf.GGUFReader(tokenizer), shape.vocab_size)
    block_size, block_bytes = gguf.GGML_QUANT_SIZES[block_type]
    matrices = [(name, rows, columns // block_size * block_bytes) for name, rows, columns in shape.matrices()]
    for name, rows, row_bytes in matrices:
        writer.add_tensor_info(
            f"{name}.weight", (rows, row_bytes), np.dtype(np.uint8), rows * row_bytes, raw_dtype=block_type
        )
    for name, size in shape.vectors():
        writer.add_tensor_info(name, (size,), np.dtype(np.float32), 4 * size)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(0)
    for _, rows, row_bytes in matrices:
        blocks = random_blocks(rng, rows * row_bytes // block_bytes, block_bytes, SPREAD / deviation)
        writer.write_tensor_data(blocks.reshape(rows, row_bytes))
    for name, size in shape.vectors():
        writer.write_tensor_data(np.full(size, 0.0 if name.endswith("bias") else 1.0, np.float32))
    writer.close()


def random_blocks(rng: np.random.Generator, number: int, block_bytes: int, scale: float) -> np.ndarray[Any, Any]:
    """Blocks that begin with one float16 scale, as Q8_0 and Q4_0 do."""
    blocks = rng.integers(0, 256, (number, block_bytes), np.uint8)
    blocks[:, :2] = np.array([scale], np.float16).view(np.uint8)
    return blocks


def describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_block_count(shape.num_layers)
    writer.add_context_length(LONGEST)
    writer.add_embedding_length(shape.hidden_size)
    writer.add_feed_forward_length(shape.intermediate_size)
    writer.add_head_count(shape.num_heads)
    writer.add_head_count_kv(shape.num_kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(shape.rope_theta)
    writer.add_rope_dimension_count(shape.head_size)


def copy_tokenizer(writer: gguf.GGUFWriter, source: gguf.GGUFReader, vocab_size: int) -> None:
    """The source's tokenizer, with tokens added until there are ``vocab_size``."""
    fields = {name.removeprefix("tokenizer.ggml."): field for name, field in source.fields.items()}
    tokens = fields["tokens"].contents()
    missing = range(vocab_size - len(tokens))
    writer.add_tokenizer_model(fields["model"].contents())
    writer.add_tokenizer_pre(fields["pre"].contents())
    writer.add_token_list(tokens + [f"<unused{number}>" for number in missing])
    writer.add_token_types(fields["token_type"].contents() + [gguf.TokenType.UNUSED for _ in missing])
    writer.add_token_merges(fields["merges"].contents())
    writer.add_bos_token_id(fields["bos_token_id"].contents())
    writer.add_eos_token_id(fields["eos_token_id"].contents())


if __name__ == "__main__":
    raise SystemExit(main())
