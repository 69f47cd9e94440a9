"""``octavo bench``: throughput, latency and start-up of a model on this machine, and what bounds them."""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.config.flat import add_cli_arguments
from octavo.words.errors import ConfigError

BENCHMARKS = {
    "throughput": ("octavo.bench.throughput", "all requests at once: requests and tokens per second"),
    "latency": ("octavo.bench.latency", "one batch at a time: seconds for a batch"),
    "serve": ("octavo.bench.serve", "a load against a running server: throughput, latencies, goodput"),
    "roofline": ("octavo.bench.roofline", "the machine itself: bandwidth, multiply rates, barrier, clock"),
    "kernels": ("octavo.bench.kernels", "a model's linears and attention alone, as a share of the machine's ceilings"),
    "startup": ("octavo.bench.startup", "fresh processes: seconds to the first token, by phase"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="|".join(BENCHMARKS))
    for name, (module_name, summary) in BENCHMARKS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        command.add_argument("--output-json", type=Path, metavar="FILE", help="also write the figures to a file")
        module = importlib.import_module(module_name)
        module.add_arguments(command)
        if getattr(module, "ENGINE_OPTIONS", True):
            add_cli_arguments(command)


def run(args: argparse.Namespace) -> int:
    if args.output_json is not None and not args.output_json.parent.is_dir():
        raise ConfigError(f"--output-json {args.output_json}: the folder {args.output_json.parent} does not exist.")
    benchmark = importlib.import_module(BENCHMARKS[args.benchmark][0])
    result = benchmark.run(args)
    if hasattr(benchmark, "print_result"):
        benchmark.print_result(result)
    else:
        print_table(args.benchmark, result)
    if args.output_json is not None:
        args.output_json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    return 0


def print_table(title: str, result: Mapping[str, Any]) -> None:
    print(f"{f' octavo bench {title} ':=^60}")
    for name, value in result.items():
        if isinstance(value, Mapping):
            print(f"{name}:")
            for inner, number in value.items():
                print(f"  {inner:<38}{_text(number)}")
        elif not isinstance(value, list):
            print(f"{name:<40}{_text(value)}")
    print("=" * 60)


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(inner).strip()}" for name, inner in value.items())
    return f"{value:<10.4f}" if isinstance(value, float) else "-" if value is None else str(value)
