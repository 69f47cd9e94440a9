"""When a step fails, its requests are suspects: each runs alone, and the one that fails again is accused.

A trial ends with the suspect's next token (it was at that place that the step failed), with its end, or with another
failed step. Nobody else runs meanwhile. After a suspect that failed, a witness is heard: a request of the engine's own
that anybody can compute. If its step fails too, the engine is broken, and no request is to blame; otherwise the
accused is guilty. So no request, nor any number of them, can have a working engine taken for a broken one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from octavo.control.request import Request

WITNESS = "octavo:witness"
"""The id of the witness."""


class Accused(NamedTuple):
    """A request that failed alone, and how."""

    request_id: str
    reason: str


class Quarantine:
    """A gate that holds back all requests but the suspect on trial, or the witness.

    ``accused`` is the suspect that failed and about whom the witness is to be heard.
    """

    def __init__(self) -> None:
        self._suspects: deque[str] = deque()
        self.accused: Accused | None = None

    @property
    def on_trial(self) -> str | None:
        """The id of the only request that may run; None: there is no suspect."""
        if self.accused is not None:
            return WITNESS
        return self._suspects[0] if self._suspects else None

    def holds(self, request: Request) -> bool:
        """Whether the request must wait until the trials are over."""
        return request.request_id != (self.on_trial or request.request_id)

    def suspect(self, request_ids: Iterable[str]) -> None:
        """Add suspects, to be tried one after the other."""
        self._suspects.extend(each for each in request_ids if each not in self._suspects)

    def accuse(self, reason: str) -> None:
        """The suspect on trial failed again: the witness is next."""
        self.accused = Accused(self._suspects.popleft(), reason)

    def end_trial(self) -> Accused | None:
        """The suspect on trial, or the witness, was computed or is gone; returns who is guilty by that."""
        if self.accused is None:
            self._suspects.popleft()
        guilty, self.accused = self.accused, None
        return guilty
