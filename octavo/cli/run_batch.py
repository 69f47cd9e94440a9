"""``octavo run-batch``: a file of OpenAI requests, answered into another one."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.config.flat import EngineArgs, add_cli_arguments
from octavo.words.errors import ConfigError

if TYPE_CHECKING:
    from octavo.frontend.async_llm import AsyncLLM


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--input-file", type=Path, required=True, metavar="FILE", help="requests, a line each")
    parser.add_argument(
        "-o", "--output-file", type=Path, required=True, metavar="FILE", help="answers; those it has are kept"
    )
    parser.add_argument("--served-model-name", metavar="NAME", help="the name in the requests (default: the model's)")
    parser.add_argument("--max-concurrency", type=int, default=512, metavar="N", help="requests at once (default: 512)")
    add_cli_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """0 where every line has an answer of status 200, now or from an earlier run."""
    from octavo.frontend.async_llm import AsyncLLM

    if args.max_concurrency < 1:
        raise ConfigError(f"--max-concurrency must be at least 1, got {args.max_concurrency}.")
    if not args.input_file.is_file():
        raise ConfigError(f"--input-file {args.input_file}: no such file")
    if not args.output_file.parent.is_dir():
        raise ConfigError(f"--output-file {args.output_file}: the folder {args.output_file.parent} does not exist.")
    engine_args = EngineArgs.from_cli_args(args)
    llm = AsyncLLM.from_engine_args(engine_args)
    try:
        return asyncio.run(_answer(args, llm, args.served_model_name or str(engine_args.model)))
    finally:
        llm.shutdown()


async def _answer(args: argparse.Namespace, llm: AsyncLLM, name: str) -> int:
    from octavo.server.batch import batch_app, run_batch

    app = batch_app(llm, name)
    tally = await run_batch(app, args.input_file, args.output_file, max_concurrency=args.max_concurrency)
    print(
        f"{tally.answered} answered, {tally.failed} failed, {tally.skipped} had an answer already: {args.output_file}",
        file=sys.stderr,
    )
    return 1 if tally.failed else 0
