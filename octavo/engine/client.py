"""How a front end talks to an engine core: one protocol, the core in this process or in another.

Six explicit methods; every rare question goes through ``call``. Both clients raise the same errors: EngineDeadError
once the core has failed (root cause on the last line), EngineError for a call that failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

from octavo.config.engine_config import EngineConfig
from octavo.engine.build import build_engine_core
from octavo.engine.core import EngineCore
from octavo.engine.core_process import CoreProcess
from octavo.engine.failure import describe_death, describe_failed_call
from octavo.engine.info import EngineInfo
from octavo.engine.interrupts import deferred_interrupts
from octavo.engine.metric import Metric
from octavo.words.errors import EngineDeadError, EngineError
from octavo.words.messages import EngineCoreOutputs, EngineCoreRequest


class EngineCoreClient(Protocol):
    """A started engine core. ``info`` holds the fitted values."""

    @property
    def info(self) -> EngineInfo: ...

    @property
    def problem(self) -> str | None:
        """Why the core cannot answer just now, None if it can. Says at once what is known, without asking the core."""
        ...

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand a request over; an error of this request comes back as its output."""
        ...

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        """End requests; unknown ones are ignored. Outputs already on their way may still arrive."""
        ...

    def get_output(self, *, blocking: bool = True) -> EngineCoreOutputs | None:
        """The next outputs. Without any: waits for them, or returns None where ``blocking`` is False.

        In-process this runs one step, whose outputs may be empty.
        """
        ...

    def call(self, name: str, *args: Any) -> Any:
        """Ask the core a question of CALL_RESULTS; ``args`` and answer are plain values or words."""
        ...

    def check_health(self) -> None:
        """Return if the core lives and its workers are well, else raise."""
        ...

    def metrics(self) -> list[Metric]:
        """What the client itself counts."""
        ...

    def shutdown(self) -> None:
        """Stop the core and free everything; harmless when called again."""
        ...


class InprocClient:
    """The core in this process, driven by whoever asks for outputs. Not to be shared between threads."""

    def __init__(self, config: EngineConfig, *, incarnation: int = 0) -> None:
        core, self._info = build_engine_core(config, incarnation=incarnation)
        self._core: EngineCore | None = core
        self._death: EngineDeadError | None = None
        self._ready: deque[EngineCoreOutputs] = deque()

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def problem(self) -> str | None:
        return str(self._death or "the engine was shut down") if self._core is None else None

    def add_request(self, request: EngineCoreRequest) -> None:
        self._living_core().add_request(request)

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._living_core().abort_requests(request_ids)

    def get_output(self, *, blocking: bool = True) -> EngineCoreOutputs | None:
        core = self._living_core()
        if not self._ready:
            if not blocking and not core.has_work:
                return None
            self._step(core)
        return self._ready.popleft() if self._ready else EngineCoreOutputs()

    def call(self, name: str, *args: Any) -> Any:
        core = self._living_core()
        self._settle(core)
        try:
            return core.call(name, *args)
        except Exception as error:
            raise EngineError(describe_failed_call(name, error)) from error

    def check_health(self) -> None:
        self.call("check_health")

    def metrics(self) -> list[Metric]:
        return []

    def shutdown(self) -> None:
        core, self._core = self._core, None
        if core is not None:
            core.shutdown()

    def _settle(self, core: EngineCore) -> None:
        """Finish steps that nobody waits for (a background core does so by itself): they still hold blocks."""
        while core.has_work and not core.scheduler.has_unfinished_requests():
            self._step(core)

    def _step(self, core: EngineCore) -> None:
        """Run one step; what it brings is kept until it is asked for, so that no Ctrl-C can lose it."""
        with deferred_interrupts():
            try:
                outputs = core.step().get(0)
            except BaseException as error:  # Half a step cannot be taken up again, whatever cut it.
                self._death = EngineDeadError(describe_death(error))
                self.shutdown()
                if isinstance(error, Exception):
                    raise self._death from error
                raise
            if outputs is not None:
                self._ready.append(outputs)

    def _living_core(self) -> EngineCore:
        if self._core is None:
            raise self._death or EngineDeadError("the engine was shut down")
        return self._core


def make_supervised_client(config: EngineConfig, first: CoreProcess | None = None) -> EngineCoreClient:
    """Start a core in a background process that is started again when it fails, as ``config.supervision`` says.

    ``first`` is a process that is there already.
    """
    from octavo.engine.supervisor import supervised

    return supervised(config, first)


def make_client(config: EngineConfig, *, multiprocess: bool) -> EngineCoreClient:
    """Start a core for ``config``, in a background process if ``multiprocess``; returns when it is ready."""
    if multiprocess:
        from octavo.engine.process_client import ProcessClient  # zmq is not needed in-process

        return ProcessClient(config)
    return InprocClient(config)
