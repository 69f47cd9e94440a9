"""What the engine tells about itself: a logger that speaks every ten seconds, and a snapshot of counters."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import msgspec

from octavo.engine.info import EngineInfo
from octavo.engine.metric import Counter, Gauge, Metric
from octavo.engine.request_stats import RequestStats
from octavo.words.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    FinishReason,
    SchedulerStats,
)

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


def scheduler_metrics(scheduler: SchedulerStats) -> list[Metric]:
    """What the scheduler counts."""
    return [
        Gauge("vllm:num_requests_running", scheduler.num_running),
        Gauge("vllm:num_requests_waiting", scheduler.num_waiting),
        Gauge("vllm:kv_cache_usage_perc", scheduler.kv_cache_usage),
        Counter("vllm:num_preemptions", scheduler.num_preemptions),
        Counter("vllm:prefix_cache_queries", scheduler.prefix_cache_queries),
        Counter("vllm:prefix_cache_hits", scheduler.prefix_cache_hits),
        Counter("octavo:num_beam_forks", scheduler.num_beam_forks),
        Counter("vllm:spec_decode_num_drafts", scheduler.num_drafts),
        Counter("vllm:spec_decode_num_draft_tokens", scheduler.num_draft_tokens),
        Counter("vllm:spec_decode_num_accepted_tokens", scheduler.num_accepted_tokens),
        *(
            Counter("vllm:spec_decode_num_accepted_tokens_per_pos", number, {"position": str(position)})
            for position, number in enumerate(scheduler.num_accepted_tokens_per_pos)
        ),
        Counter("octavo:spec_decode_num_trials", scheduler.num_draft_trials),
        Counter("octavo:num_steps", scheduler.num_steps),
        Counter("octavo:num_prefill_chunks", scheduler.num_prefill_chunks),
        Counter("octavo:num_bursts", scheduler.num_bursts),
        Counter("octavo:num_burst_steps", scheduler.num_burst_steps),
    ]


def cache_metrics(info: EngineInfo) -> list[Metric]:
    """What was learnt of the KV cache at start-up: a gauge that is always 1, whose labels say it."""
    config = info.kv_cache_config
    labels = {
        "block_size": str(config.scheduler_block_size),
        "num_gpu_blocks": str(config.num_blocks),
        "cache_dtype": info.plan.kv_cache_dtype,
        "enable_prefix_caching": str(info.plan.enable_prefix_caching),
    }
    return [Gauge("vllm:cache_config_info", 1, labels)]


class Statistics:
    """Follows the requests of one front end, tells its stat loggers about every step, and lets them speak every
    LOG_INTERVAL_S seconds."""

    def __init__(self, requests: RequestStats, stat_loggers: Sequence[StatLogger] = ()) -> None:
        self._requests = requests
        self._stat_loggers = tuple(stat_loggers)
        self._next_log_time = time.monotonic() + LOG_INTERVAL_S
        self._scheduler = SchedulerStats()

    @property
    def newest(self) -> SchedulerStats:
        """The scheduler's books after the newest step."""
        return self._scheduler

    def add(self, stat_logger: StatLogger) -> None:
        """Tell one more from now on."""
        self._stat_loggers += (stat_logger,)

    def begin(self, choices: Iterable[EngineCoreRequest]) -> None:
        """Follow a request that is handed to the core."""
        for choice in choices:
            self._requests.begin(choice)

    def record(self, outputs: EngineCoreOutputs, stopped: Sequence[str] = ()) -> None:
        """Take note of what a step brought; ``stopped`` are the choices that a stop string has ended with it."""
        self._requests.record(outputs.outputs)
        if stopped:
            self._requests.end(stopped, str(FinishReason.STOP))
        if outputs.stats is None:
            return
        self._scheduler = outputs.stats
        if self._stat_loggers:
            iteration = IterationStats.of(outputs.outputs)
            for stat_logger in self._stat_loggers:
                stat_logger.record(outputs.stats, iteration)
        if time.monotonic() >= self._next_log_time:
            self.log()

    def end(self, request_ids: Iterable[str], reason: FinishReason) -> None:
        """Choices ended without an output of the core."""
        self._requests.end(request_ids, str(reason))

    def log(self) -> None:
        """Let every stat logger speak now."""
        self._next_log_time = time.monotonic() + LOG_INTERVAL_S
        for stat_logger in self._stat_loggers:
            stat_logger.log()

    def snapshot(self, scheduler: SchedulerStats, more: Iterable[Metric] = ()) -> list[Metric]:
        """All metrics now; ``scheduler`` is what the core says at this moment, ``more`` what others count."""
        return [*scheduler_metrics(scheduler), *self._requests.metrics(), *more]
