"""What each engine's script shares: it starts the engine, runs workloads one after the other, prints one JSON line.

Runs in the engine's own environment, so it imports nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from workloads import STARTUP, Workload


class Engine(Protocol):
    """An engine that is ready. ``version`` is told in the report."""

    version: str

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        """Answer all prompts, greedily and to the full length; return the number of tokens made."""
        ...

    def forget(self) -> None:
        """Empty what one workload could leave to the next: prefix caches."""
        ...


def main(start: Callable[[dict[str, Any]], Engine]) -> None:
    """The whole script: ``start`` takes the order's options and returns the engine.

    The order is JSON on the command line: model, options, num_threads, vocab_size, workloads, and when the process
    began (``time.time``).
    """
    order = json.loads(sys.argv[1])
    engine = start(order)
    engine.generate(STARTUP.prompts(order["vocab_size"]), STARTUP.output_len)
    result: dict[str, Any] = {"version": engine.version, "seconds": {}, "errors": {}}
    result["seconds"][STARTUP.name] = time.time() - order["began"]
    for fields in order["workloads"]:
        workload = Workload(**fields)
        if workload.name == STARTUP.name:
            continue
        try:
            result["seconds"][workload.name] = timed(engine, workload, order["vocab_size"])
        except Exception as error:  # whatever an engine raises is told, and the next workload may do
            result["errors"][workload.name] = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps(result), flush=True)


def timed(engine: Engine, workload: Workload, vocab_size: int) -> float:
    """Seconds for one workload. Raises RuntimeError where tokens are missing."""
    prompts = workload.prompts(vocab_size)
    engine.forget()
    started = time.perf_counter()
    made = engine.generate(prompts, workload.output_len)
    seconds = time.perf_counter() - started
    wanted = workload.num_requests * workload.output_len
    if made != wanted:
        raise RuntimeError(f"{made} tokens were made, not {wanted}")
    return seconds
