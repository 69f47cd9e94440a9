"""What was measured, as a Markdown table and as a picture of ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workloads import WORKLOADS, Workload

OURS = "octavo"


def markdown(record: dict[str, Any]) -> str:
    """A table per class of precision: medians of every engine, and Octavo's ratio to the best peer."""
    parts = [_heading(record)]
    for precision in dict.fromkeys(run["precision"] for run in record["runs"]):
        engines = _engines(record, precision)
        parts += [f"### {precision}", "", f"| workload | {' | '.join(engines)} | ratio to the best peer |"]
        parts.append("|---" * (len(engines) + 2) + "|")
        for name in record["workloads"]:
            parts.append(_row(record, precision, engines, WORKLOADS[name]))
        parts.append("")
    parts += [f"{what}: {why}" for what, why in record["failures"].items()]
    return "\n".join(parts)


def _heading(record: dict[str, Any]) -> str:
    machine, before, after = record["machine"], record["ceilings_before"], record["ceilings_after"]
    read = " and ".join(_rate(ceilings, "read_gbps") for ceilings in (before, after))
    versions = "; ".join(f"{engine} {version}" for engine, version in record["versions"].items())
    return (
        f"{machine['cpu']}, {machine['num_threads']} threads, {machine['isa']}; read bandwidth before and after: "
        f"{read} GB/s; {record['model']}; {versions}. Medians (lowest-highest) of {record['rounds']} "
        f"rounds, engines in turn, one alive at a time.\n"
    )


def _rate(ceilings: dict[str, Any] | None, name: str) -> str:
    threads = [value for key, value in (ceilings or {}).items() if key.startswith("threads_")]
    return f"{threads[-1][name]['best']:.1f}" if threads else "?"


def _row(record: dict[str, Any], precision: str, engines: Sequence[str], workload: Workload) -> str:
    cells = [f"{workload.title}, {workload.metric}"]
    for engine in engines:
        values = values_of(record, precision, engine, workload)
        cells.append(f"{statistics.median(values):.4g} ({min(values):.4g}-{max(values):.4g})" if values else "-")
    ratios = ratios_of(record, precision, workload)
    cells.append(f"{min(ratios.values()):.2f} ({min(ratios, key=ratios.__getitem__)})" if ratios else "-")
    return f"| {' | '.join(cells)} |"


def values_of(record: dict[str, Any], precision: str, engine: str, workload: Workload) -> list[float]:
    """The metric in every run that has it."""
    seconds = [
        run["seconds"][workload.name]
        for run in record["runs"]
        if (run["precision"], run["engine"]) == (precision, engine) and workload.name in run["seconds"]
    ]
    return [workload.value(spent) for spent in seconds]


def ratios_of(record: dict[str, Any], precision: str, workload: Workload) -> dict[str, float]:
    """How many times better Octavo's median is than each peer's; above 1 it is faster, whatever the metric."""
    ours = values_of(record, precision, OURS, workload)
    found = {}
    for engine in _engines(record, precision):
        theirs = values_of(record, precision, engine, workload)
        if ours and theirs and engine != OURS:
            ratio = statistics.median(ours) / statistics.median(theirs)
            found[engine] = 1 / ratio if workload.lower_is_better else ratio
    return found


def _engines(record: dict[str, Any], precision: str) -> list[str]:
    return list(dict.fromkeys(run["engine"] for run in record["runs"] if run["precision"] == precision))


def draw(record: dict[str, Any], path: Path) -> None:
    """Bars of Octavo's ratio to each peer, a panel per class of precision; the line is a draw."""
    from matplotlib.figure import Figure

    precisions = list(dict.fromkeys(run["precision"] for run in record["runs"]))
    figure = Figure(figsize=(5 * len(precisions), 5), layout="constrained")
    figure.suptitle(f"Octavo's speed over its peers', {record['model']}")
    for axes, precision in zip(figure.subplots(1, len(precisions), squeeze=False)[0], precisions, strict=True):
        peers = [engine for engine in _engines(record, precision) if engine != OURS]
        names = record["workloads"]
        for number, peer in enumerate(peers):
            ratios = [ratios_of(record, precision, WORKLOADS[name]).get(peer, 0.0) for name in names]
            places = [index + number / (len(peers) + 1) for index in range(len(names))]
            axes.bar(places, ratios, width=1 / (len(peers) + 1), label=peer, align="edge")
        axes.axhline(1.0, color="black", linewidth=1)
        axes.set(title=precision, ylabel="times as fast", xticks=[index + 0.4 for index in range(len(names))])
        axes.set_xticklabels(names, rotation=45, ha="right")
        if peers:
            axes.legend()
    figure.savefig(path)
