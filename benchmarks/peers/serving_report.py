"""What serving.py measured, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

OURS = "octavo"
COLUMNS = (
    ("good requests/s", "request_goodput", 3),
    ("TTFT p50, ms", "p50_ttft_ms", 0),
    ("TTFT p99, ms", "p99_ttft_ms", 0),
    ("ITL p50, ms", "p50_itl_ms", 0),
    ("ITL p99, ms", "p99_itl_ms", 0),
    ("output tok/s", "output_throughput", 1),
    ("start, s", "ready_s", 1),
)


def markdown(record: dict[str, Any]) -> str:
    """A table for each part that was run, and what could not be."""
    machine = record["machine"]
    parts = [f"{machine['cpu']}, {machine['num_threads']} threads; {record['model']}; {record['date']}.\n"]
    if record["closed"]:
        parts.append(closed_table(record))
    if record["open"]:
        parts.append(open_table(record))
    parts += [f"{what}: {why}" for what, why in record["failures"].items()]
    return "\n".join(parts)


def closed_table(record: dict[str, Any]) -> str:
    load = record["closed_load"]
    title = (
        f"Closed loop: {load['clients']} clients, {load['requests']} requests of {load['input_len']} + "
        f"{load['output_len']} tokens, in turn.\n"
    )
    lines = [title, "| | output tok/s of each run |", "|---|---|"]
    for kind, name in (("offline", "`octavo bench throughput`"), ("served", "server")):
        lines.append(f"| {name} | {', '.join(f'{value:.1f}' for value in throughputs(record, kind))} |")
    lines.append(f"| server / offline | {', '.join(f'{ratio:.3f}' for ratio in ratios(record))} |")
    return "\n".join([*lines, ""])


def throughputs(record: dict[str, Any], kind: str) -> list[float]:
    return [run["output_throughput"] for run in record["closed"] if run["kind"] == kind]


def ratios(record: dict[str, Any]) -> list[float]:
    """The server's share of what the engine does without it, of each pair of neighbours."""
    pairs = zip(throughputs(record, "served"), throughputs(record, "offline"), strict=False)
    return [served / offline for served, offline in pairs]


def open_table(record: dict[str, Any]) -> str:
    load = record["open_load"]
    inputs, outputs = zip(*load["lengths"], strict=True)
    title = (
        f"Poisson arrivals: {len(inputs)} requests at {load['rate']:.2f} a second; input {spread(inputs)} tokens, "
        f"output {spread(outputs)}; good is {' and '.join(load['goodput'])} ms. Median (lowest-highest) of the runs.\n"
    )
    lines = [title, f"| | {' | '.join(name for name, _, _ in COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
    for engine in dict.fromkeys(run["engine"] for run in record["open"]):
        runs = [run for run in record["open"] if run["engine"] == engine]
        cells = [cell([run[key] for run in runs], digits) for _, key, digits in COLUMNS]
        lines.append(f"| {engine}, {runs[0]['precision']} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def spread(values: Sequence[int]) -> str:
    return f"{min(values)}-{max(values)} (mean {statistics.fmean(values):.0f})"


def cell(values: Sequence[float], digits: int) -> str:
    median = f"{statistics.median(values):.{digits}f}"
    return median if len(values) == 1 else f"{median} ({min(values):.{digits}f}-{max(values):.{digits}f})"
