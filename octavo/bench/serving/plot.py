"""Pictures of a load test: throughput against latency, how TTFT and ITL are spread, and every request's time."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.bench.serving.figures import token_times
from octavo.bench.serving.load import Answer
from octavo.words.errors import ConfigError

MAX_BARS = 500


def check_plot(path: Path) -> None:
    """Raises ConfigError where it could not be drawn, before anything runs."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib: pip install 'octavo[plot]'") from None
    if not path.parent.is_dir():
        raise ConfigError(f"--plot {path}: the folder {path.parent} does not exist.")


def plot(path: Path, answers: Sequence[Answer], title: str) -> None:
    """Write the picture as PNG (or what the name's ending says)."""
    from matplotlib.figure import Figure  # no window and no global state

    good = sorted((answer for answer in answers if answer.success), key=lambda answer: answer.start)
    figure = Figure(figsize=(12, 8), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(2, 2)
    _throughput_latency(axes[0, 0], good)
    _timeline(axes[0, 1], good)
    _cdf(axes[1, 0], [1e3 * answer.ttft for answer in good], "time to first token (ms)")
    _cdf(axes[1, 1], [1e3 * gap for answer in good for gap in answer.itls], "inter-token latency (ms)")
    figure.savefig(path)


def _throughput_latency(axes: Any, answers: Sequence[Answer]) -> None:
    """A point per second of the run."""
    gaps: dict[int, list[float]] = {}
    for answer in answers:
        moments = list(token_times(answer))[1:]
        for moment, gap in zip(moments, answer.itls, strict=True):
            gaps.setdefault(math.floor(moment), []).append(1e3 * gap)
    axes.scatter([len(found) for found in gaps.values()], [statistics.median(found) for found in gaps.values()], s=12)
    axes.set(xlabel="pieces of text in a second", ylabel="median inter-token latency (ms)", title="throughput-latency")


def _timeline(axes: Any, answers: Sequence[Answer]) -> None:
    """A bar per request: waiting for its first token, then its tokens."""
    began = answers[0].start if answers else 0.0
    shown = answers[:: math.ceil(len(answers) / MAX_BARS) or 1]
    rows, starts = range(len(shown)), [answer.start - began for answer in shown]
    axes.barh(rows, [answer.ttft for answer in shown], left=starts, label="first token", color="tab:orange")
    rest = [answer.latency - answer.ttft for answer in shown]
    firsts = [start + answer.ttft for start, answer in zip(starts, shown, strict=True)]
    axes.barh(rows, rest, left=firsts, label="tokens", color="tab:blue")
    axes.set(xlabel="seconds", ylabel="request", title="requests")
    axes.legend(loc="lower right")


def _cdf(axes: Any, values: Sequence[float], label: str) -> None:
    ordered = sorted(values)
    axes.step(ordered, [(index + 1) / len(ordered) for index in range(len(ordered))], where="post")
    axes.set(xlabel=label, ylabel="share of them", title="cumulative distribution", ylim=(0, 1.02))
