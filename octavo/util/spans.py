"""What happened when, for whoever asked to know: named spans of time, in one process or another.

Times are of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import msgspec


class Span(msgspec.Struct, array_like=True):
    """Something that took time. ``track`` is the line it is drawn on; ``facts`` are numbers and short texts."""

    name: str
    track: str
    start_ns: int
    duration_ns: int
    facts: dict[str, Any] = {}


class Spans(Protocol):
    """Takes note of spans."""

    def span(self, name: str) -> AbstractContextManager[Span | None]:
        """Time the block. What the block puts into the span's ``facts`` is kept with it; None where nobody listens."""
        ...

    detailed: bool
    """Whether spans of single ops are wanted, which cost some time themselves."""

    def extend(self, spans: Iterable[Span]) -> None:
        """Take spans that were timed elsewhere."""
        ...

    def take(self) -> list[Span]:
        """All that ended so far, in the order they ended; they are forgotten here."""
        ...


class NoSpans:
    """Nobody listens: a block runs as it would alone."""

    detailed = False
    _block: AbstractContextManager[None] = nullcontext()

    def span(self, name: str) -> AbstractContextManager[None]:
        return self._block

    def extend(self, spans: Iterable[Span]) -> None:
        pass

    def take(self) -> list[Span]:
        return []


NO_SPANS = NoSpans()


class SpanRecorder:
    """Keeps all spans of one track. For one thread."""

    def __init__(self, track: str, *, detailed: bool = False) -> None:
        self.detailed = detailed
        self._track = track
        self._spans: list[Span] = []

    def span(self, name: str) -> AbstractContextManager[Span]:
        return _Timed(self._spans, Span(name, self._track, 0, 0, {}))

    def __len__(self) -> int:
        return len(self._spans)

    def extend(self, spans: Iterable[Span]) -> None:
        self._spans.extend(spans)

    def take(self) -> list[Span]:
        taken, self._spans[:] = list(self._spans), []
        return taken


class _Timed:
    """One block; a class, for a generator would cost more than many a block."""

    def __init__(self, spans: list[Span], span: Span) -> None:
        self._spans = spans
        self._span = span

    def __enter__(self) -> Span:
        self._span.start_ns = time.monotonic_ns()
        return self._span

    def __exit__(self, *_: object) -> None:
        self._span.duration_ns = time.monotonic_ns() - self._span.start_ns
        self._spans.append(self._span)
