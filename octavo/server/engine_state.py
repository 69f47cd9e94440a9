"""The engine as the routes see it: loading, ready, recovering, or gone.

While it recovers, requests are taken and wait, but nobody should send more than are there (/health is 503).
"""

from __future__ import annotations

import enum

from octavo.frontend.async_llm import AsyncLLM
from octavo.server.api_error import not_ready


class Phase(enum.StrEnum):
    """How far the engine is."""

    LOADING = "loading"
    READY = "ready"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    DEAD = "dead"


class EngineState:
    """Holds the engine from the moment it is ready."""

    def __init__(self) -> None:
        self._llm: AsyncLLM | None = None
        self._phase = Phase.LOADING

    def set_ready(self, llm: AsyncLLM) -> None:
        """Requests are answered from now on, unless the server is stopping."""
        self._llm = llm
        if self._phase is Phase.LOADING:
            self._phase = Phase.READY

    def set_stopping(self) -> None:
        """No new request is answered."""
        self._phase = Phase.STOPPING

    @property
    def phase(self) -> Phase:
        """How far the engine is now."""
        if self._phase is not Phase.READY or self._llm is None:
            return self._phase
        if self._llm.errored:
            return Phase.DEAD
        return Phase.READY if self._llm.problem is None else Phase.RECOVERING

    @property
    def loaded_llm(self) -> AsyncLLM:
        """The engine whatever its phase, for who only looks. Raises as ``llm`` while it is loading."""
        return self._llm or self.llm

    @property
    def llm(self) -> AsyncLLM:
        """The engine. Raises the error that a client gets while there is none to use."""
        phase = self.phase
        if phase in (Phase.READY, Phase.RECOVERING) and self._llm is not None:
            return self._llm
        reasons = {
            Phase.LOADING: "the model is loading; try again in a moment.",
            Phase.STOPPING: "the server is stopping.",
            Phase.DEAD: "the engine has failed; the server's log says why.",
        }
        raise not_ready(reasons[phase])
