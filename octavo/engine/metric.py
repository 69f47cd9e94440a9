"""What can be counted, as values: a gauge, a counter, a histogram.

Names are those of vLLM's metrics, ``vllm:`` prefix included, so that dashboards and scripts work unchanged; what
vLLM has no name for begins with ``octavo:``.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


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


class Histogram(msgspec.Struct, frozen=True):
    """Values counted by bucket since start: ``counts[i]`` up to ``bounds[i]``, the last one without a bound."""

    name: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float
    labels: dict[str, str] = {}

    @property
    def value(self) -> int:
        """How many values were counted."""
        return sum(self.counts)


Metric: TypeAlias = Gauge | Counter | Histogram
