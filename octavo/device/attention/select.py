"""Choose an attention backend: by name, or the first of the table that can do what a model needs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from octavo.device.attention.backend import AttentionBackend, AttentionNeeds
from octavo.device.attention.table import BACKENDS
from octavo.device.ops.native.context import NativeContext
from octavo.util.lazy import resolve
from octavo.words.errors import UnsupportedError


def load_backend(name: str) -> Any:
    """Import the backend class of this name. Raises UnsupportedError naming those there are."""
    if name not in BACKENDS:
        raise UnsupportedError(f"attention backend {name!r} does not exist; there are {', '.join(BACKENDS)}")
    return resolve(BACKENDS[name])


def select_backend(name: str, needs: AttentionNeeds, native: NativeContext | None = None) -> AttentionBackend:
    """The named backend, or with "auto" the first that fits; ``native`` is what native kernels run on, if any.

    Raises UnsupportedError with one line per backend tried and reason.
    """
    needs = replace(needs, has_native=native is not None)
    tried = list(BACKENDS) if name == "auto" else [name]
    reasons: list[str] = []
    for candidate in tried:
        backend = load_backend(candidate)
        against = backend.support.reasons_against(needs)
        if not against:
            made: AttentionBackend = backend(native) if backend.support.needs_native else backend()
            return made
        reasons += [f"{candidate}: {reason}" for reason in against]
    raise UnsupportedError("no attention backend can serve this model", reasons)
