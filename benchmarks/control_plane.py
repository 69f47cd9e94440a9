"""What the control plane costs, without a model: scheduler and KV cache manager over the simulated executor.

    python benchmarks/control_plane.py [--num-requests 100000] [--output-json results.json]

Three things, with their bars: a step of 256 decodes (schedule and update; <= 2.0 ms), the admission of a prompt of
8,192 tokens that is fully cached (beside hashing; <= 3 ms), and memory over many requests (flat). Block size 16.
Times are medians over a round of steps, of the best of several rounds: other processes only ever add to them.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from octavo.control.kv.block_hash import make_block_hasher
from octavo.control.kv.manager import KVCacheManager
from octavo.control.kv.planning import KVCacheLimits, RankNeeds, plan_kv_cache
from octavo.control.request import Request
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.scheduler import Scheduler
from octavo.executor.simulated import SimulatedExecutor
from octavo.words.kv_cache_spec import FullAttentionSpec, KVCacheConfig
from octavo.words.messages import EngineCoreRequest, ResolvedSampling
from octavo.words.sampling_params import SamplingParams

BLOCK_SIZE = 16
SPECS = {"layer": FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype="int8")}


class StepTimes(NamedTuple):
    """Milliseconds of the two halves of the scheduler's work on a step."""

    schedule: float
    update: float

    @property
    def both(self) -> float:
        return self.schedule + self.update


class Bench:
    """A scheduler, its cache and a simulated executor, and a clock around schedule and update."""

    def __init__(self, *, num_blocks: int, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        limits = SchedulerLimits(
            max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len
        )
        config = plan(num_blocks, limits)
        self.kv_cache = KVCacheManager(config, enable_caching=True, max_num_batched_tokens=max_num_batched_tokens)
        self.scheduler = Scheduler(limits, self.kv_cache)
        self.executor = SimulatedExecutor(SPECS, check=False)
        self.executor.initialize_from_config(config)
        self.hasher = make_block_hasher(BLOCK_SIZE)

    def step(self) -> StepTimes:
        """Run one step."""
        start = time.perf_counter()
        step = self.scheduler.schedule()
        scheduled = time.perf_counter()
        result = self.executor.sample(self.executor.execute(step))
        sampled = time.perf_counter()
        self.scheduler.update_from_output(step, result)
        return StepTimes((scheduled - start) * 1e3, (time.perf_counter() - sampled) * 1e3)


def plan(num_blocks: int, limits: SchedulerLimits) -> KVCacheConfig:
    cache_limits = KVCacheLimits(
        max_model_len=limits.max_model_len,
        model_max_len=limits.max_model_len,
        max_num_batched_tokens=limits.max_num_batched_tokens,
        num_blocks_override=num_blocks,
    )
    return plan_kv_cache(RankNeeds(specs=SPECS, available_bytes=1 << 40), cache_limits)


def make_message(request_id: str, prompt_token_ids: list[int], max_tokens: int) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    sampling = ResolvedSampling(params=params, seed=0, max_tokens=max_tokens, num_text_tokens=1 << 20)
    return EngineCoreRequest(
        request_id=request_id, prompt_token_ids=prompt_token_ids, sampling=sampling, arrival_time=0.0
    )


def measure_decode(num_requests: int = 256, num_rounds: int = 10, steps_per_round: int = 64) -> dict[str, float]:
    """Milliseconds of a step in which every request decodes one token, admission over."""
    bench = Bench(num_blocks=32_768, max_num_seqs=num_requests, max_num_batched_tokens=8_192, max_model_len=2_048)
    for number in range(num_requests):
        first = number * 1_000
        message = make_message(f"request-{number}", list(range(first, first + 512 + number % BLOCK_SIZE)), 1_024)
        bench.scheduler.add_request(Request(message, bench.hasher))
    while len(bench.scheduler.waiting):
        bench.step()
    bench.step()
    rounds = [[bench.step() for _ in range(steps_per_round)] for _ in range(num_rounds)]
    best = min(rounds, key=lambda steps: statistics.median(step.both for step in steps))
    return {
        "schedule_ms": statistics.median(step.schedule for step in best),
        "update_ms": statistics.median(step.update for step in best),
        "step_ms": statistics.median(step.both for step in best),
        "step_all_rounds_ms": statistics.median(step.both for steps in rounds for step in steps),
    }


def measure_cached_admission(num_tokens: int = 8_192, num_rounds: int = 50) -> dict[str, float]:
    """Milliseconds from add_request to the end of the first step's update, for a prompt that is wholly cached."""
    bench = Bench(num_blocks=4_096, max_num_seqs=8, max_num_batched_tokens=16_384, max_model_len=16_384)
    prompt = list(range(num_tokens))
    hashing, admission = [], []
    for number in range(num_rounds + 1):
        message = make_message(f"request-{number}", prompt, 1)
        start = time.perf_counter()
        request = Request(message, bench.hasher)
        hashed = time.perf_counter()
        bench.scheduler.add_request(request)
        added = time.perf_counter()
        hashing.append((hashed - start) * 1e3)
        admission.append((added - hashed) * 1e3 + bench.step().both)
        is_cached = request.num_cached_tokens == num_tokens - BLOCK_SIZE
        assert is_cached or number == 0, f"only {request.num_cached_tokens} of {num_tokens} tokens were cached"
    return {"hashing_ms": statistics.median(hashing[1:]), "admission_ms": statistics.median(admission[1:])}


def measure_memory(num_requests: int = 100_000, num_at_once: int = 64) -> dict[str, float]:
    """Resident memory while many short requests pass, every tenth aborted; slope over the last three quarters."""
    bench = Bench(num_blocks=1_024, max_num_seqs=num_at_once, max_num_batched_tokens=2_048, max_model_len=512)
    process = psutil.Process()
    samples: list[tuple[int, float]] = []
    num_added = 0
    start = time.perf_counter()
    while num_added < num_requests or bench.scheduler.has_requests():
        while num_added < num_requests and len(bench.scheduler.requests) < num_at_once:
            first = num_added * 32
            message = make_message(f"request-{num_added}", list(range(first, first + 32 + num_added % 17)), 4)
            bench.scheduler.add_request(Request(message, bench.hasher))
            if num_added % 10 == 3:
                bench.scheduler.abort_requests([f"request-{num_added - 3}"])
            num_added += 1
            if num_added % max(num_requests // 40, 1) == 0:
                gc.collect()
                samples.append((num_added, process.memory_info().rss / 2**20))
        bench.step()
    seconds = time.perf_counter() - start
    steady = samples[len(samples) // 4 :]
    slope = statistics.linear_regression([float(n) for n, _ in steady], [rss for _, rss in steady]).slope
    assert bench.kv_cache.usage == 0.0, "blocks leaked"
    return {
        "requests_per_second": num_requests / seconds,
        "rss_start_mib": steady[0][1],
        "rss_end_mib": steady[-1][1],
        "rss_slope_bytes_per_request": slope * 2**20,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--num-requests", type=int, default=100_000, help="requests of the memory part")
    parser.add_argument("--output-json", type=Path, help="also write the numbers here")
    arguments = parser.parse_args()

    decode = measure_decode()
    admission = measure_cached_admission()
    memory = measure_memory(arguments.num_requests)
    slope = memory["rss_slope_bytes_per_request"]
    rows: list[tuple[str, str, str, bool | None]] = [
        ("256 decodes: schedule", f"{decode['schedule_ms']:.2f} ms", "", None),
        ("256 decodes: update", f"{decode['update_ms']:.2f} ms", "", None),
        ("256 decodes: schedule + update", f"{decode['step_ms']:.2f} ms", "<= 2.0 ms", decode["step_ms"] <= 2.0),
        ("  the same, over all rounds", f"{decode['step_all_rounds_ms']:.2f} ms", "", None),
        ("8,192 tokens: hashing", f"{admission['hashing_ms']:.2f} ms", "", None),
        (
            "8,192 tokens, cached: admission",
            f"{admission['admission_ms']:.2f} ms",
            "<= 3 ms",
            admission["admission_ms"] <= 3.0,
        ),
        (f"{arguments.num_requests:,} requests: rate", f"{memory['requests_per_second']:,.0f} /s", "", None),
        (f"{arguments.num_requests:,} requests: RSS slope", f"{slope:.1f} bytes each", "<= 16 bytes", slope <= 16),
    ]
    for name, value, bar, holds in rows:
        verdict = "" if holds is None else "ok" if holds else "MISSED"
        print(f"{name:<36}{value:>16}  {bar:<12} {verdict}")
    if arguments.output_json is not None:
        results: dict[str, Any] = {"decode": decode, "cached_admission": admission, "memory": memory}
        arguments.output_json.write_text(json.dumps(results, indent=2) + "\n")
    return 0 if all(holds is not False for *_, holds in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
