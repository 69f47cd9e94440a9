"""What native kernels run on."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType
from typing import Any

from octavo.words.errors import ConfigError

try:
    from octavo import _native
except ImportError:
    _native = None


@dataclass(frozen=True, slots=True)
class NativeContext:
    """The native library, and the engine's own threads (a ``library.ThreadPool``)."""

    library: ModuleType
    pool: Any


def open_native(num_threads: int, isa: str = "auto") -> NativeContext:
    """Start ``num_threads`` compute threads; the instruction set is chosen for the whole process.

    Raises ConfigError where the library is not installed, or cannot use ``isa`` on this CPU.
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
    return NativeContext(_native, _native.ThreadPool(num_threads))
