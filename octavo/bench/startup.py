"""Fresh processes: seconds from the start of Python to the first token, by phase."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from octavo.config.flat import config_from_namespace, non_default
from octavo.words.errors import ConfigError, EngineStartError

PROBE = "octavo.bench.startup_probe"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-iters", type=int, default=5, metavar="N", help="timed processes (default: 5)")
    parser.add_argument(
        "--num-iters-warmup", type=int, default=1, metavar="N", help="processes before them (default: 1)"
    )
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds a process may take (default: 600)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Medians over the timed processes; ``phases`` sum up to nearly ``time_to_first_token``."""
    if args.num_iters < 1:
        raise ConfigError(f"--num-iters must be at least 1, got {args.num_iters}.")
    options = json.dumps(non_default(config_from_namespace(args)))
    runs = [probe(options, args.timeout) for _ in range(args.num_iters_warmup + args.num_iters)][
        args.num_iters_warmup :
    ]
    totals = [run["time_to_first_token"] for run in runs]
    names = list(runs[0]["phases"])
    return {
        "time_to_first_token": statistics.median(totals),
        "phases": {name: statistics.median(run["phases"][name] for run in runs) for name in names},
        "times_to_first_token": totals,
    }


def probe(options: str, timeout_s: float) -> dict[str, Any]:
    """One fresh process that starts an engine, makes one token and tells its phases."""
    command = [sys.executable, "-m", PROBE, repr(time.time()), options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise EngineStartError(
            f"the start-up probe took more than {timeout_s:g} s; allow more with --timeout"
        ) from None
    if done.returncode != 0:
        raise EngineStartError(f"the start-up probe failed:\n{done.stderr.strip()}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result
