"""What the engine tells about itself: a logger that speaks every ten seconds, and a snapshot of counters.

Names are those of vLLM's metrics, ``vllm:`` prefix included, so that dashboards and scripts work unchanged; what
vLLM has no name for begins with ``octavo:``.
"""

from __future__ import annotations

import logging
import time
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

import msgspec

from octavo.words.messages import EngineCoreOutput, EngineCoreOutputs, SchedulerStats

LOG_INTERVAL_S = 10.0

logger = logging.getLogger(__name__)


class IterationStats(msgspec.Struct, kw_only=True):
    """One batch of outputs as the front end saw it. ``finished`` counts choices by finish reason."""

    num_generation_tokens: int = 0
    finished: dict[str, int] = {}

    @classmethod
    def of(cls, outputs: Iterable[EngineCoreOutput]) -> IterationStats:
        """Count what ``outputs`` brought."""
        stats = cls(finished={})
        for output in outputs:
            stats.num_generation_tokens += len(output.new_token_ids)
            if output.finish_reason is not None:
                reason = str(output.finish_reason)
                stats.finished[reason] = stats.finished.get(reason, 0) + 1
        return stats


class StatLogger(Protocol):
    """Is told about every step, and asked to speak from time to time."""

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        """Take note of one step."""
        ...

    def log(self) -> None:
        """Say what is new; called about every LOG_INTERVAL_S seconds and by ``LLMEngine.do_log_stats``."""
        ...


class LoggingStatLogger:
    """Writes vLLM's line of throughputs and cache use; silent while nothing happens."""

    def __init__(
        self, *, engine_index: int = 0, device: str = "cpu", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._engine_index = engine_index
        self._device = device.upper()
        self._clock = clock
        self._now = SchedulerStats()
        self._last = SchedulerStats()
        self._last_time = clock()

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        self._now = scheduler

    def log(self) -> None:
        last, now = self._last, self._now
        spent = max(self._clock() - self._last_time, 1e-9)
        self._last, self._last_time = now, self._clock()
        if now.num_steps == last.num_steps:
            return
        logger.info(
            "Engine %03d: Avg prompt throughput: %.1f tokens/s, Avg generation throughput: %.1f tokens/s, "
            "Running: %d reqs, Waiting: %d reqs, %s KV cache usage: %.1f%%, Prefix cache hit rate: %.1f%%",
            self._engine_index,
            (now.num_prompt_tokens - last.num_prompt_tokens) / spent,
            (now.num_generation_tokens - last.num_generation_tokens) / spent,
            now.num_running,
            now.num_waiting,
            self._device,
            100 * now.kv_cache_usage,
            100 * now.prefix_cache_hits / max(now.prefix_cache_queries, 1),
        )


class Gauge(msgspec.Struct, frozen=True):
    """A value that goes up and down."""

    name: str
    value: float
    labels: dict[str, str] = {}


class Counter(msgspec.Struct, frozen=True):
    """A total since start."""

    name: str
    value: int
    labels: dict[str, str] = {}


Metric: TypeAlias = Gauge | Counter


class MetricsRecorder:
    """A StatLogger that keeps totals for ``snapshot``."""

    def __init__(self) -> None:
        self._finished: Tally[str] = Tally()

    def record(self, scheduler: SchedulerStats, iteration: IterationStats) -> None:
        self._finished.update(iteration.finished)

    def count_finished(self, reason: str, number: int = 1) -> None:
        """Count choices that ended without an output of the core (an abort by the client)."""
        self._finished[reason] += number

    def log(self) -> None:
        """Nothing to say: whoever wants to know asks for a snapshot."""

    def snapshot(self, scheduler: SchedulerStats) -> list[Metric]:
        """All metrics now; ``scheduler`` is what the core says at this moment."""
        return [
            Gauge("vllm:num_requests_running", scheduler.num_running),
            Gauge("vllm:num_requests_waiting", scheduler.num_waiting),
            Gauge("vllm:kv_cache_usage_perc", scheduler.kv_cache_usage),
            Counter("vllm:prompt_tokens", scheduler.num_prompt_tokens),
            Counter("vllm:generation_tokens", scheduler.num_generation_tokens),
            Counter("vllm:num_preemptions", scheduler.num_preemptions),
            Counter("vllm:prefix_cache_queries", scheduler.prefix_cache_queries),
            Counter("vllm:prefix_cache_hits", scheduler.prefix_cache_hits),
            Counter("octavo:num_steps", scheduler.num_steps),
            *(
                Counter("vllm:request_success", number, {"finished_reason": reason})
                for reason, number in sorted(self._finished.items())
            ),
        ]


class Statistics:
    """Tells the stat loggers of one front end about every step, and lets them speak every LOG_INTERVAL_S seconds."""

    def __init__(self, stat_loggers: Sequence[StatLogger] = ()) -> None:
        self._metrics = MetricsRecorder()
        self._stat_loggers: tuple[StatLogger, ...] = (self._metrics, *stat_loggers)
        self._next_log_time = time.monotonic() + LOG_INTERVAL_S

    def add(self, stat_logger: StatLogger) -> None:
        """Tell one more from now on."""
        self._stat_loggers += (stat_logger,)

    def record(self, outputs: EngineCoreOutputs) -> None:
        """Take note of what a step brought."""
        if outputs.stats is None:
            return
        iteration = IterationStats.of(outputs.outputs)
        for stat_logger in self._stat_loggers:
            stat_logger.record(outputs.stats, iteration)
        if time.monotonic() >= self._next_log_time:
            self.log()

    def count_finished(self, reason: str, number: int = 1) -> None:
        """Count choices that ended without an output of the core."""
        self._metrics.count_finished(reason, number)

    def log(self) -> None:
        """Let every stat logger speak now."""
        self._next_log_time = time.monotonic() + LOG_INTERVAL_S
        for stat_logger in self._stat_loggers:
            stat_logger.log()

    def snapshot(self, scheduler: SchedulerStats) -> list[Metric]:
        """All metrics now; ``scheduler`` is what the core says at this moment."""
        return self._metrics.snapshot(scheduler)
