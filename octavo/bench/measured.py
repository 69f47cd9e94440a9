"""One measured stretch of work of an LLM: its steps, and how near they came to the ceilings of the same run."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from octavo.bench.limits import ModelCost, Run, shares, steps_of
from octavo.bench.profile import write_chrome_trace
from octavo.bench.roofline import MachineProbe
from octavo.plan.plan import Plan
from octavo.util.spans import Span
from octavo.words.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from octavo.frontend.llm import LLM

ARENA_BYTES = 512 << 20
"""Smaller than that of ``octavo bench roofline``: a model lies beside it. Still many times any cache."""

T = TypeVar("T")


class MeasuredLLM:
    """Times work with the engine's own notes on, and measures the machine before and after.

    Without native kernels there is nothing to measure the machine with, and ``figures`` are empty.
    """

    def __init__(self, llm: LLM, profile: Path | None = None) -> None:
        """``profile`` is the file that ``write_profile`` writes; with one, every op is timed too."""
        self._llm = llm
        self._profile = profile
        self._spans: list[Span] = []
        self._runs: list[Run] = []
        self._probe = _probe(llm)
        self._before = self._probe.ceilings() if self._probe else None

    def time(self, work: Callable[[], T]) -> tuple[T, float]:
        """What ``work`` returns, and its seconds."""
        llm, kernels = self._llm, self._kernel_seconds()
        llm.start_profile(with_ops=self._profile is not None)
        started = time.monotonic_ns()
        result = work()
        ended = time.monotonic_ns()
        spans, after = llm.stop_profile(), self._kernel_seconds()
        elapsed_s = (ended - started) / 1e9
        kernel_s = None if kernels is None or after is None else after - kernels
        self._spans += spans
        self._runs.append(Run(steps=steps_of(spans, ended), elapsed_s=elapsed_s, kernel_s=kernel_s))
        return result, elapsed_s

    def figures(self) -> dict[str, Any]:
        """Ceilings and shares over everything timed so far; see ``limits``."""
        if self._probe is None or self._before is None:
            return {}
        info = self._llm.info
        after = self._probe.ceilings()
        cost = ModelCost.of(info.facts, info.plan.kv_cache_dtype, self._llm.collective_rpc("weight_bytes")[0])
        kernels = [run.kernel_s for run in self._runs if run.kernel_s is not None]
        run = Run(
            steps=[step for run in self._runs for step in run.steps],
            elapsed_s=sum(run.elapsed_s for run in self._runs),
            kernel_s=sum(kernels) if len(kernels) == len(self._runs) else None,
        )
        figures = shares(run, cost, self._before.best_with(after), multiplied_dtype(info.plan))
        return {**figures, "num_steps": len(run.steps), "ceilings_changed": self._before.changed_to(after)}

    def write_profile(self) -> None:
        """Write the Chrome trace, if one was asked for."""
        if self._profile is not None:
            write_chrome_trace(self._profile, self._spans)

    def _kernel_seconds(self) -> float | None:
        try:
            seconds: float | None = self._llm.collective_rpc("seconds_in_kernels")[0]
        except EngineError:  # an executor without workers
            return None
        return seconds


def multiplied_dtype(plan: Plan) -> str:
    """The type of the numbers that the plan's projections multiply; weights of few bits meet int8."""
    return plan.dtype if plan.quantization == "none" else "int8"


def _probe(llm: LLM) -> MachineProbe | None:
    plan = llm.info.plan
    if plan.kernels != "native":
        return None
    try:
        return MachineProbe(plan.num_threads, plan.cpu_isa, ARENA_BYTES)
    except ConfigError:
        return None
