"""One batch at a time: how many seconds until all of it is done."""

from __future__ import annotations

import argparse
import statistics
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
from octavo.util.percentile import percentile
from octavo.words.errors import ConfigError

PERCENTILES = (10, 25, 50, 75, 90, 99)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch-size", type=int, default=1, metavar="N", help="requests per batch (default: 1)")
    parser.add_argument("--num-iters", type=int, default=5, metavar="N", help="timed batches (default: 5)")
    parser.add_argument("--num-iters-warmup", type=int, default=1, metavar="N", help="batches before them (default: 1)")
    add_shape_arguments(parser, with_num_prompts=False)
    add_profile_argument(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Keys as in ``vllm bench latency``, and those of ``limits``. The prefix cache is reset before each batch."""
    from octavo.frontend.llm import LLM

    if args.num_iters < 1:
        raise ConfigError(f"--num-iters must be at least 1, got {args.num_iters}.")
    check_profile_argument(args)
    if args.batch_size < 1:
        raise ConfigError(f"--batch-size must be at least 1, got {args.batch_size}.")
    shape = shape_from(args, args.batch_size)
    params = fixed_length_params(shape)
    with LLM.from_engine_args(EngineArgs.from_cli_args(args)) as llm:
        prompts = random_prompts(shape, sampled_vocab_size(llm))
        for _ in range(args.num_iters_warmup):
            llm.reset_prefix_cache()
            llm.generate(prompts, params, use_tqdm=False)
        measured, latencies = MeasuredLLM(llm, args.profile), []
        for _ in range(args.num_iters):
            llm.reset_prefix_cache()
            latencies.append(measured.time(lambda: llm.generate(prompts, params, use_tqdm=False))[1])
        figures = measured.figures()
        measured.write_profile()
    return {
        "avg_latency": statistics.fmean(latencies),
        "latencies": latencies,
        "percentiles": {str(p): percentile(latencies, p) for p in PERCENTILES},
        **figures,
    }
