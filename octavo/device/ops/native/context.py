"""What native kernels run on: the library, the engine's threads, and whoever takes note of what is run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor

from octavo.words.errors import ConfigError

try:
    from octavo import _native
except ImportError:
    _native = None

Op = Callable[..., Any]


class Recorder(Protocol):
    """Takes note of a forward pass while it runs (``ops/recording``)."""

    def call(self, name: str, op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], *, has_kernel: bool) -> Any:
        """Run an op, and note what it launches; one without a kernel is noted as a call to make at every step."""
        ...

    def empty(self, rows: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """As ``NativeContext.empty``, where it will be at every step."""
        ...

    def note(self, launch: Any, num_rows: int, tensors: tuple[Tensor, ...]) -> None:
        """A launch is about to run on these tensors."""
        ...


class NativeContext:
    """The native library, and the engine's own threads (a ``library.ThreadPool``).

    Kernels write to memory from ``empty`` and start by ``run``, so that one wrapper serves both a call at once and,
    while there is a ``recorder``, a step that is noted to be run again.
    """

    def __init__(self, library: ModuleType, pool: Any) -> None:
        self.library = library
        self.pool = pool
        self.recorder: Recorder | None = None

    def empty(self, rows: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Room for results, [len(rows), *shape] in ``dtype`` (that of ``rows``); not initialised."""
        dtype = dtype or rows.dtype
        if self.recorder is not None:
            return self.recorder.empty(rows, shape, dtype)
        return torch.empty(len(rows), *shape, dtype=dtype)

    def run(self, launch: Any, num_rows: int, *tensors: Tensor, num_requests: int = 0) -> None:
        """Run a ``library.Launch`` over rows; ``tensors`` are all that it has addresses of."""
        if self.recorder is not None:
            self.recorder.note(launch, num_rows, tensors)
        launch.run(self.pool, num_rows, num_requests)

    def op(self, name: str, op: Op, *, has_kernel: bool) -> Op:
        """``op`` as models call it, seen by the recorder while there is one."""

        @wraps(op)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.recorder is None:
                return op(*args, **kwargs)
            return self.recorder.call(name, op, args, kwargs, has_kernel=has_kernel)

        return call


def open_native(num_threads: int, isa: str = "auto", cpus: Sequence[int] = ()) -> NativeContext:
    """Start ``num_threads`` compute threads, each on its own of the ``cpus`` if there are any.

    The instruction set is chosen for the whole process.

    Raises ConfigError where the library is not installed, or cannot use ``isa`` on this CPU, or the system refuses the
    threads.
    """
    if _native is None:
        raise ConfigError(
            "native kernels cannot be had: octavo._native is not installed; reinstall octavo with a compiler"
        )
    if isa != "auto" and isa not in _native.available_isas():
        raise ConfigError(
            f"cpu_isa={isa} cannot be had: this CPU can use {', '.join(_native.available_isas())}, or auto"
        )
    _native.set_isa(isa)
    try:
        return NativeContext(_native, _native.ThreadPool(num_threads, list(cpus)))
    except RuntimeError as error:
        raise ConfigError(f"num_threads={num_threads} cannot be had: {error}; ask for fewer threads") from error
