"""Made-up prompts of a given shape, the same for the same seed."""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.words.errors import ConfigError
from octavo.words.inputs import TokensPrompt
from octavo.words.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo.frontend.llm import LLM


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many requests, and how many tokens each: a common prefix, its own input, its output."""

    num_prompts: int
    input_len: int
    output_len: int
    prefix_len: int = 0


def add_shape_arguments(parser: argparse.ArgumentParser, *, with_num_prompts: bool = True) -> None:
    if with_num_prompts:
        parser.add_argument("--num-prompts", type=int, default=64, metavar="N", help="requests (default: 64)")
    parser.add_argument("--input-len", type=int, default=128, metavar="L", help="own prompt tokens (default: 128)")
    parser.add_argument("--output-len", type=int, default=128, metavar="M", help="output tokens (default: 128)")
    parser.add_argument("--prefix-len", type=int, default=0, metavar="P", help="prompt tokens all share (default: 0)")


def shape_from(args: argparse.Namespace, num_prompts: int) -> Shape:
    for name, value in (
        ("--num-prompts", num_prompts),
        ("--input-len", args.input_len),
        ("--output-len", args.output_len),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}.")
    if args.prefix_len < 0:
        raise ConfigError(f"--prefix-len must be at least 0, got {args.prefix_len}.")
    return Shape(
        num_prompts=num_prompts, input_len=args.input_len, output_len=args.output_len, prefix_len=args.prefix_len
    )


def random_prompts(shape: Shape, vocab_size: int, seed: int = 0) -> list[TokensPrompt]:
    """Prompts of random token ids; all begin with the same ``prefix_len`` ids."""
    rng = random.Random(seed)
    prefix = [rng.randrange(vocab_size) for _ in range(shape.prefix_len)]
    return [
        {"prompt_token_ids": prefix + [rng.randrange(vocab_size) for _ in range(shape.input_len)]}
        for _ in range(shape.num_prompts)
    ]


def sampled_vocab_size(llm: LLM) -> int:
    """Number of ids that both the tokenizer and the model know."""
    return min(llm.get_tokenizer().num_text_tokens, llm.info.facts.vocab_size)


def fixed_length_params(shape: Shape) -> SamplingParams:
    """Greedy sampling that goes on to ``output_len`` tokens whatever the model says."""
    return SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=shape.output_len, detokenize=False)
