"""When a step fails, its requests are suspects: each runs alone, and the one that fails again is guilty.

A trial ends with the suspect's next token (it was at that place that the step failed), with its end, or with another
failed step. Nobody else runs meanwhile. The guilty are told apart from a broken engine: if every one of several
suspects fails alone, something else is wrong and the engine should be started again; if they fail there too, it is
them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from octavo.control.request import Request


class Verdict(NamedTuple):
    """Who failed alone, each with the reason, and whether that is the engine's fault rather than theirs."""

    failed: dict[str, str]
    engine_is_broken: bool


class Quarantine:
    """A gate that holds back all requests but the suspect on trial."""

    def __init__(self) -> None:
        self._suspects: deque[str] = deque()
        self._failed: dict[str, str] = {}
        self._engine_may_be_broken = True

    @property
    def on_trial(self) -> str | None:
        """The id of the only request that may run; None: there is no suspect."""
        return self._suspects[0] if self._suspects else None

    def holds(self, request: Request) -> bool:
        """Whether the request must wait until the trials are over."""
        return bool(self._suspects) and request.request_id != self._suspects[0]

    def accuse(self, request_ids: Iterable[str], *, survived_by_none: bool = False) -> None:
        """Add suspects; ``survived_by_none``: an engine was started again because of them."""
        self._suspects.extend(each for each in request_ids if each not in self._suspects)
        if survived_by_none:
            self._engine_may_be_broken = False

    def acquit(self) -> None:
        """The suspect on trial got its token: it is innocent, and the engine works."""
        self._suspects.popleft()
        self._engine_may_be_broken = False

    def dismiss(self) -> None:
        """The suspect on trial is gone, which proves nothing."""
        self._suspects.popleft()

    def fail(self, reason: str) -> None:
        """The suspect on trial failed again."""
        self._failed[self._suspects.popleft()] = reason

    def take_verdict(self) -> Verdict:
        """After the last trial; begins anew."""
        verdict = Verdict(self._failed, len(self._failed) > 1 and self._engine_may_be_broken)
        self._failed, self._engine_may_be_broken = {}, True
        return verdict
