"""From answers to the figures and the table that users of ``vllm bench serve`` know, under the same names."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from octavo.bench.serving.load import Answer
from octavo.util.percentile import percentile

TITLES = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
}
VALUES: dict[str, Callable[[Answer], list[float]]] = {
    "ttft": lambda answer: [answer.ttft],
    "tpot": lambda answer: [] if answer.tpot is None else [answer.tpot],
    "itl": lambda answer: answer.itls,
    "e2el": lambda answer: [answer.latency],
}


def figures(
    answers: Sequence[Answer],
    duration_s: float,
    *,
    percentiles: Sequence[float],
    metrics: Sequence[str],
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """Throughput and latencies (milliseconds) of the answers that succeeded.

    ``goodput`` maps metrics to the most milliseconds that a good request may take.
    """
    good = [answer for answer in answers if answer.success]
    num_output = sum(answer.output_len for answer in good)
    num_input = sum(answer.prompt_len for answer in good)
    found: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(good) / duration_s,
        "request_goodput": _num_within(good, goodput) / duration_s if goodput else None,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
        "max_output_tokens_per_s": max_tokens_in_a_second(good),
        "max_concurrent_requests": max_concurrent(good),
    }
    for metric in metrics:
        values = [1e3 * value for answer in good for value in VALUES[metric](answer)] or [0.0]
        found[f"mean_{metric}_ms"] = statistics.fmean(values)
        found[f"median_{metric}_ms"] = statistics.median(values)
        found[f"std_{metric}_ms"] = statistics.pstdev(values)
        for percent in percentiles:
            found[f"p{percent:g}_{metric}_ms"] = percentile(values, percent)
    return found


def details(answers: Sequence[Answer], began: float) -> dict[str, Any]:
    """Everything about every request; times of day are seconds after ``began``."""
    return {
        "input_lens": [answer.prompt_len for answer in answers],
        "output_lens": [answer.output_len for answer in answers],
        "ttfts": [answer.ttft for answer in answers],
        "itls": [answer.itls for answer in answers],
        "start_times": [answer.start - began for answer in answers],
        "latencies": [answer.latency for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }


def max_concurrent(answers: Sequence[Answer]) -> int:
    """Most answers that were open at once."""
    changes = sorted(
        change for answer in answers for change in ((answer.start, 1), (answer.start + answer.latency, -1))
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def max_tokens_in_a_second(answers: Sequence[Answer]) -> float:
    """Most tokens that came in one second of the clock; a piece of text counts as its share of the answer's tokens."""
    seconds: dict[int, float] = {}
    for answer in answers:
        each = answer.output_len / (1 + len(answer.itls))
        for moment in token_times(answer):
            seconds[math.floor(moment)] = seconds.get(math.floor(moment), 0.0) + each
    return max(seconds.values(), default=0.0)


def token_times(answer: Answer) -> Iterator[float]:
    """When each piece of text came."""
    now = answer.start + answer.ttft
    yield now
    for gap in answer.itls:
        now += gap
        yield now


def _num_within(answers: Sequence[Answer], limits: Mapping[str, float]) -> int:
    def is_good(answer: Answer) -> bool:
        return all(1e3 * value <= limit for name, limit in limits.items() for value in VALUES[name](answer))

    return sum(map(is_good, answers))


def table(found: Mapping[str, Any], *, metrics: Sequence[str], percentiles: Sequence[float]) -> str:
    """The figures as text. ``found`` may hold the load's own numbers beside them."""
    lines = [f"{' Serving Benchmark Result ':=^50}"]
    lines += [_line(title, found[key]) for title, key in ROWS if found.get(key) is not None]
    for metric in metrics:
        short, long = TITLES[metric]
        lines.append(f"{long:-^50}")
        lines.append(_line(f"Mean {short} (ms):", found[f"mean_{metric}_ms"]))
        lines.append(_line(f"Median {short} (ms):", found[f"median_{metric}_ms"]))
        lines += [_line(f"P{percent:g} {short} (ms):", found[f"p{percent:g}_{metric}_ms"]) for percent in percentiles]
    return "\n".join([*lines, "=" * 50])


ROWS = (
    ("Successful requests:", "completed"),
    ("Failed requests:", "failed"),
    ("Maximum request concurrency:", "max_concurrency"),
    ("Request rate configured (RPS):", "request_rate"),
    ("Benchmark duration (s):", "duration"),
    ("Total input tokens:", "total_input_tokens"),
    ("Total generated tokens:", "total_output_tokens"),
    ("Request throughput (req/s):", "request_throughput"),
    ("Request goodput (req/s):", "request_goodput"),
    ("Output token throughput (tok/s):", "output_throughput"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s"),
    ("Peak concurrent requests:", "max_concurrent_requests"),
    ("Total token throughput (tok/s):", "total_token_throughput"),
)


def _line(title: str, value: float | int | str) -> str:
    return f"{title:<40} {value:<10.2f}" if isinstance(value, float) else f"{title:<40} {value:<10}"
