"""The one tree of errors a user can meet.

    OctavoError
    ├── ConfigError            an option, or a combination of options, that cannot be had
    │   └── UnknownOptionError a name that is no option; carries the nearest match
    ├── ModelNotFoundError     a model argument that resolves to nothing; says where it was looked for
    ├── CheckpointError        a file that is broken or lies; names the file and, where there is one, the tensor
    ├── CaptureError           a model's forward pass that cannot be recorded; names the call and its place
    ├── UnsupportedError       a thing we know and cannot do; carries one reason per way that was tried
    ├── InsufficientMemoryError  needed bytes, available bytes, and what would fit
    ├── RequestError           one request is wrong (HTTP 400); carries the parameter's name
    ├── OverloadedError        too many requests wait already (HTTP 503); says when to try again
    ├── RequestTimeoutError    a request did not end in its time (HTTP 504)
    ├── ListenError            an address on which the server cannot listen
    └── EngineError
        ├── EngineStartError   the engine did not start; the root cause is its last line
        └── EngineDeadError    the engine died; the root cause is its last line

Every message says what was asked, what is possible, and what to do.
"""

from __future__ import annotations

from collections.abc import Sequence


class OctavoError(Exception):
    """Root of every error that Octavo raises on purpose."""


class ConfigError(OctavoError, ValueError):
    """An option or a combination of options that cannot be had."""


class UnknownOptionError(ConfigError):
    """A name that is no option. ``nearest`` is the closest known name, or None; ``advice`` says what to do instead."""

    def __init__(
        self, name: str, nearest: str | None = None, *, kind: str = "option", advice: str | None = None
    ) -> None:
        hint = f": {advice}." if advice else f". Did you mean {nearest!r}?" if nearest else "."
        super().__init__(f"unknown {kind} {name!r}{hint}")
        self.name = name
        self.nearest = nearest


class ModelNotFoundError(OctavoError, FileNotFoundError):
    """A model argument that resolves to nothing."""


class CheckpointError(OctavoError, ValueError):
    """A checkpoint file that is broken, truncated or inconsistent."""

    def __init__(self, file: object, problem: str, *, tensor: str | None = None) -> None:
        where = f"{file}" + (f", tensor {tensor!r}" if tensor else "")
        super().__init__(f"{where}: {problem}")
        self.file = str(file)
        self.tensor = tensor
        self.problem = problem


class UnsupportedError(OctavoError, ValueError):
    """Something recognised that cannot be done here. ``reasons`` has one line per way that was tried."""

    def __init__(self, what: str, reasons: Sequence[str] = ()) -> None:
        listed = "".join(f"\n  - {reason}" for reason in reasons)
        super().__init__(what + listed)
        self.reasons = tuple(reasons)


class CaptureError(OctavoError):
    """A forward pass that cannot be recorded to be run again; it can still be run."""


class InsufficientMemoryError(OctavoError, MemoryError):
    """Memory for weights or KV cache that is not there. Byte counts are attributes."""

    def __init__(self, message: str, *, needed_bytes: int, available_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class RequestError(OctavoError, ValueError):
    """One request is wrong; it harms no other. ``param`` names the field at fault, if one is."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class OverloadedError(OctavoError):
    """No more requests are taken for now. ``retry_after_s`` says when another try may be worth it."""

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTimeoutError(OctavoError, TimeoutError):
    """A request did not end within the time it was given; it was aborted."""


class ListenError(OctavoError, OSError):
    """An address on which the server cannot listen."""


class EngineError(OctavoError, RuntimeError):
    """The engine as a whole failed."""


class EngineStartError(EngineError):
    """The engine did not start. The last line of the message is the root cause."""


class EngineDeadError(EngineError):
    """The engine died while requests were open. The last line of the message is the root cause."""
