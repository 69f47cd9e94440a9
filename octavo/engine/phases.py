"""Seconds of each phase of the start: start-up time is a feature, so it is always measured."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Phases:
    """A stopwatch per phase. ``seconds`` keeps the order in which phases began; a phase may be entered again."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            logger.debug("Start-up phase %s took %.3f s", name, spent)

    def sum(self, *names: str) -> float:
        """Seconds of the named phases together; a phase that did not happen counts 0."""
        return sum(self.seconds.get(name, 0.0) for name in names)
