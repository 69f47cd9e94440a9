"""Gates hold back requests that cannot start yet, for a reason that is neither tokens nor blocks.

A grammar that is still being compiled, a LoRA slot that is taken, keys and values on their way from another machine:
each is a gate. A held request is skipped, not a stop: those behind it are tried, and it keeps its place.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from octavo.control.request import Request


class Gate(Protocol):
    """One reason for a request to wait. Asked once per waiting request and step, so it must be quick."""

    def holds(self, request: Request) -> bool:
        """Whether the request must wait for now."""


class Gates:
    """Several gates as one, in their order."""

    def __init__(self, gates: Iterable[Gate] = ()) -> None:
        self._gates = tuple(gates)

    def add(self, gate: Gate) -> None:
        """One more, behind the others."""
        self._gates += (gate,)

    def holds(self, request: Request) -> bool:
        """Whether any of them holds the request."""
        return any(gate.holds(request) for gate in self._gates)
