"""What the page shows of the engine. The core is asked when somebody looks, and for all who look at once."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.metric import Histogram, Metric
from octavo.server.api_error import ApiError
from octavo.server.context import ServerContext
from octavo.server.responses import json_response
from octavo.words.snapshot import EngineSnapshot

FRESH_S = 0.2
"""A state this old is given to others who ask."""
WAIT_S = 5.0
LATENCIES = {"ttft": "vllm:time_to_first_token_seconds", "itl": "vllm:inter_token_latency_seconds"}
NUMBERS = (
    "vllm:num_preemptions", "vllm:prefix_cache_queries", "vllm:prefix_cache_hits", "vllm:prompt_tokens",
    "vllm:generation_tokens", "octavo:num_steps", "octavo:engine_restarts",
)  # fmt: skip


class Buckets(msgspec.Struct, kw_only=True):
    """A histogram since start: ``counts[i]`` values lie above bound i - 1 and up to bound i."""

    bounds: list[float]
    counts: list[int]


class EngineView(msgspec.Struct, kw_only=True):
    """The engine at one moment; ``at`` in seconds since 1970, ``totals`` since start, by the names of /metrics."""

    at: float
    snapshot: EngineSnapshot
    totals: dict[str, float]
    latencies: dict[str, Buckets]
    resident_bytes: dict[str, int]
    max_model_len: int


class EngineViews:
    """The route."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._asking: asyncio.Task[EngineView] | None = None
        self._asked_at = 0.0

    async def show(self, request: Request) -> Response:
        """Blocks, requests, recent steps, latencies and memory of this moment."""
        try:
            async with asyncio.timeout(WAIT_S):
                return json_response(await asyncio.shield(self._newest()))
        except TimeoutError:
            raise ApiError(503, "the engine is busy and has not answered yet.", headers={"retry-after": "1"}) from None

    def _newest(self) -> asyncio.Task[EngineView]:
        """The question that is on its way or was just answered, else a new one."""
        llm = self._context.llm  # raises while there is none
        task, now = self._asking, time.monotonic()
        if task is None or (task.done() and (now - self._asked_at > FRESH_S or task.exception() is not None)):
            self._asked_at = now
            task = self._asking = asyncio.create_task(self._ask(llm))
        return task

    async def _ask(self, llm: Any) -> EngineView:
        snapshot: EngineSnapshot = await llm.call("snapshot")
        metrics = await llm.get_metrics()
        return EngineView(
            at=time.time(),
            snapshot=snapshot,
            totals=_totals(metrics),
            latencies=_latencies(metrics),
            resident_bytes=resident_bytes(),
            max_model_len=llm.info.max_model_len,
        )


def resident_bytes() -> dict[str, int]:
    """Memory of this process and of those it started, where the system tells; the core is the largest of them."""
    found = {"server": _resident(os.getpid())}
    if core := max((_resident(pid) for pid in _children()), default=0):
        found["core"] = core
    return found


def _totals(metrics: list[Metric]) -> dict[str, float]:
    return {
        metric.name: float(metric.value) for metric in metrics if metric.name in NUMBERS and hasattr(metric, "value")
    }


def _latencies(metrics: list[Metric]) -> dict[str, Buckets]:
    by_name = {metric.name: metric for metric in metrics if isinstance(metric, Histogram)}
    return {
        short: Buckets(bounds=list(by_name[name].bounds), counts=list(by_name[name].counts))
        for short, name in LATENCIES.items()
    }


def _children() -> list[int]:
    try:
        lists = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    except OSError:
        return []
    return [int(pid) for pids in lists for pid in pids]


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
