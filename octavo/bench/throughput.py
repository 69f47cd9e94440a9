"""All requests at once: how many requests and tokens per second."""

from __future__ import annotations

import argparse
from typing import Any

from octavo.bench.measured import MeasuredLLM
from octavo.bench.profile import add_profile_argument, check_profile_argument
from octavo.bench.workload import (
    add_shape_arguments,
    fixed_length_params,
    random_prompts,
    sampled_vocab_size,
    shape_from,
)
from octavo.config.flat import EngineArgs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shape_arguments(parser)
    add_profile_argument(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Keys as in ``vllm bench throughput``; ``output_tokens_per_second`` beside them, and those of ``limits``."""
    from octavo.frontend.llm import LLM

    check_profile_argument(args)
    shape = shape_from(args, args.num_prompts)
    with LLM.from_engine_args(EngineArgs.from_cli_args(args)) as llm:
        vocab_size = sampled_vocab_size(llm)
        prompts = random_prompts(shape, vocab_size)
        params = fixed_length_params(shape)
        llm.generate(random_prompts(shape, vocab_size, seed=1)[:1], params.clone(max_tokens=2), use_tqdm=False)
        measured = MeasuredLLM(llm, args.profile)
        outputs, elapsed = measured.time(lambda: llm.generate(prompts, params, use_tqdm=False))
        figures = measured.figures()
        measured.write_profile()
    num_output = sum(len(output.outputs[0].token_ids) for output in outputs)
    num_total = num_output + sum(len(output.prompt_token_ids) for output in outputs)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(outputs),
        "total_num_tokens": num_total,
        "requests_per_second": len(outputs) / elapsed,
        "tokens_per_second": num_total / elapsed,
        "output_tokens_per_second": num_output / elapsed,
        **figures,
    }
