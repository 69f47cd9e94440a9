"""What this machine can do at most: bytes read and copied, multiply-adds, how fast its threads meet, its clock."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.config.flat import config_from_namespace
from octavo.device.platform.detect import detect_caps
from octavo.util.byte_size import parse_byte_size
from octavo.words.errors import ConfigError

ARENA_BYTES = 1 << 30
NUM_BARRIERS = 10_000
UNITS = {"float32": "float32_gflops", "bfloat16": "bf16_gflops", "int8": "int8_gops"}
"""Types a multiply-add unit can have, and the name its rate goes by."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, metavar="N", help="times each is measured (default: 5)")
    parser.add_argument("--arena", default="1GiB", metavar="BYTES", help="memory to stream through (default: 1GiB)")
    parser.add_argument(
        "--multiply-seconds", type=float, default=0.1, metavar="S", help="seconds per multiply rate (default: 0.1)"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Rates with one thread and with all; each as the best and the median of the repeats."""
    if args.repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, got {args.repeats}.")
    probe = MachineProbe(num_threads_from(args), args.cpu_isa if "cpu_isa" in args else "auto", arena_from(args.arena))
    result: dict[str, Any] = {"cpu": detect_caps("cpu").name, "isa": probe.isa, "clock_ghz": probe.clock_ghz()}
    for num_threads in sorted({1, probe.num_threads}):
        result[f"threads_{num_threads}"] = probe.measure(num_threads, args.repeats, args.multiply_seconds)
    return result


def num_threads_from(args: argparse.Namespace) -> int:
    config = config_from_namespace(args)
    return config.parallel.num_threads or detect_caps("cpu").num_threads


def arena_from(text: str) -> int:
    try:
        return parse_byte_size(text)
    except ValueError as error:
        raise ConfigError(f"--arena: {error}") from None


@dataclass(frozen=True)
class Ceilings:
    """Rates nobody gets beyond with all threads. A rate is None where the instruction set has no such unit."""

    read_gbps: float
    float32_gflops: float
    bf16_gflops: float | None
    int8_gops: float | None

    def unit(self, dtype: str) -> tuple[str, float]:
        """Name and operations per second of the unit that numbers of ``dtype`` are multiplied by.

        Where bfloat16 has none it is widened, and float32's is meant; so it is for any other type.
        """
        name = UNITS.get(dtype, "float32_gflops")
        rate = getattr(self, name)
        return (name, rate * 1e9) if rate is not None else ("float32_gflops", self.float32_gflops * 1e9)

    def changed_to(self, other: Ceilings) -> float:
        """How far apart two measurements of read bandwidth are, as a share of the larger: noise of the neighbours."""
        return abs(self.read_gbps - other.read_gbps) / max(self.read_gbps, other.read_gbps)

    def best_with(self, other: Ceilings) -> Ceilings:
        """The higher of two measurements of the same machine, rate by rate."""
        return Ceilings(
            max(self.read_gbps, other.read_gbps),
            max(self.float32_gflops, other.float32_gflops),
            _higher(self.bf16_gflops, other.bf16_gflops),
            _higher(self.int8_gops, other.int8_gops),
        )


class MachineProbe:
    """Measures with the engine's own threads and instruction set. Raises ConfigError where they cannot be had."""

    def __init__(self, num_threads: int, isa: str = "auto", arena_bytes: int = ARENA_BYTES) -> None:
        self._library = _native_library()
        if isa != "auto" and isa not in self._library.available_isas():
            raise ConfigError(f"cpu_isa={isa} cannot be had: there are {', '.join(self._library.available_isas())}")
        self._library.set_isa(isa)
        self.isa: str = self._library.active_isa()
        self.num_threads = num_threads
        self._pools = {count: self._library.ThreadPool(count) for count in {1, num_threads}}
        self._memory = self._library.BandwidthProbe(self._pools[num_threads], arena_bytes)

    def clock_ghz(self) -> float:
        """Highest of a few looks: a core that slept needs some time."""
        return max(self._library.clock_hz() for _ in range(5)) / 1e9

    def ceilings(self, repeats: int = 3, multiply_seconds: float = 0.03) -> Ceilings:
        """Best rates of all threads."""
        found = self._rates(self._pools[self.num_threads], repeats, multiply_seconds)
        best = {name: rate and rate["best"] for name, rate in found.items()}
        return Ceilings(best["read_gbps"], best["float32_gflops"], best["bf16_gflops"], best["int8_gops"])

    def measure(self, num_threads: int, repeats: int, multiply_seconds: float) -> dict[str, Any]:
        """Each rate as best and median of ``repeats``. A copy counts the bytes read and those written.

        ``barrier_spun`` is the share of waits for other threads that ended before one slept; None: no waits.
        """
        pool, memory = self._pools[num_threads], self._memory
        before = _waits(pool)
        barrier = _several(repeats, lambda: 1e6 * self._library.barrier_seconds(pool, NUM_BARRIERS), best=min)
        spun, slept = (now - then for now, then in zip(_waits(pool), before, strict=True))
        return {
            "copy_gbps": _several(repeats, lambda: memory.bytes / memory.copy_seconds(pool) / 1e9),
            **self._rates(pool, repeats, multiply_seconds),
            "barrier_us": barrier,
            "barrier_spun": spun / (spun + slept) if spun + slept else None,
        }

    def _rates(self, pool: Any, repeats: int, multiply_seconds: float) -> dict[str, Any]:
        memory = self._memory
        figures: dict[str, Any] = {
            "read_gbps": _several(repeats, lambda: memory.bytes / memory.read_seconds(pool) / 1e9)
        }
        for unit, name in UNITS.items():
            figures[name] = _several(repeats, partial(self._rate, pool, unit, multiply_seconds))
        return figures

    def _rate(self, pool: Any, unit: str, seconds: float) -> float | None:
        operations, spent = self._library.multiply_rate(pool, unit, seconds)
        return operations / spent / 1e9 if operations else None


def _waits(pool: Any) -> tuple[int, int]:
    counts = pool.counts()
    return sum(thread["waits_spun"] for thread in counts), sum(thread["waits_slept"] for thread in counts)


def _several(
    repeats: int, measure: Callable[[], float | None], best: Callable[[list[float]], float] = max
) -> dict[str, float] | None:
    values = [value for value in (measure() for _ in range(repeats)) if value is not None]
    return {"best": best(values), "median": statistics.median(values)} if values else None


def _higher(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


def _native_library() -> Any:
    try:
        from octavo import _native
    except ImportError:
        raise ConfigError(
            "octavo._native is not installed, and measures this: reinstall octavo with a compiler"
        ) from None
    return _native
