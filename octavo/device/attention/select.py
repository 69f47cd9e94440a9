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
            return _made(backend, native)
        reasons += [f"{candidate}: {reason}" for reason in against]
    raise UnsupportedError("no attention backend can serve this model", reasons)


def _made(backend: Any, native: NativeContext | None) -> AttentionBackend:
    if backend.support.needs_native:
        found: AttentionBackend = backend(native)
        return found
    return backend() if native is None else CalledAttention(backend(), native)


class CalledAttention:
    """A backend without native kernels among ops that have them: a recorded step calls it where it splits."""

    def __init__(self, backend: AttentionBackend, native: NativeContext) -> None:
        self.name, self.support = backend.name, backend.support
        self.preferred_block_sizes, self.block_axis = backend.preferred_block_sizes, backend.block_axis
        self.kv_cache_shape, self.build_metadata = backend.kv_cache_shape, backend.build_metadata
        self.forward = native.op("paged_attention", backend.forward, has_kernel=False)
