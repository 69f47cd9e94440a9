"""How many answers tool parsers have read, for /metrics."""

from __future__ import annotations

from collections import Counter as Tally
from itertools import product
from typing import Literal, TypeAlias

from octavo.engine.metric import Counter, Metric

Interface: TypeAlias = Literal["chat_completions", "responses", "other"]
INTERFACES: tuple[Interface, ...] = ("chat_completions", "responses", "other")


class ToolCallCounts:
    """Counts answers to requests with tools, each once: by how it was sent, by what asked for it, and by its calls."""

    def __init__(self) -> None:
        self._counts: Tally[tuple[Interface, bool, bool]] = Tally()

    def add(self, interface: Interface, *, is_stream: bool, has_calls: bool) -> None:
        """An answer has ended."""
        self._counts[interface, is_stream, has_calls] += 1

    def metrics(self) -> list[Metric]:
        """All series, those of nothing too: no request adds one."""
        return [
            Counter(
                "vllm:tool_call_parser_invocations",
                self._counts[interface, is_stream, has_calls],
                {
                    "mode": "streaming" if is_stream else "non_streaming",
                    "outcome": "tool_call" if has_calls else "no_tool_call",
                    "request_type": interface,
                },
            )
            for interface, is_stream, has_calls in product(INTERFACES, (True, False), (True, False))
        ]
