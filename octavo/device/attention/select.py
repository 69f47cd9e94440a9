"""Choose an attention backend: by name, or the first of the table that can do what a model needs."""

from __future__ import annotations

from importlib import import_module

from octavo.device.attention.backend import AttentionBackend, AttentionNeeds
from octavo.device.attention.table import BACKENDS
from octavo.words.errors import UnsupportedError


def load_backend(name: str) -> AttentionBackend:
    """Import the backend of this name. Raises UnsupportedError naming those there are."""
    if name not in BACKENDS:
        raise UnsupportedError(f"attention backend {name!r} does not exist; there are {', '.join(BACKENDS)}")
    module_name, class_name = BACKENDS[name].split(":")
    return getattr(import_module(module_name), class_name)()


def select_backend(name: str, needs: AttentionNeeds) -> AttentionBackend:
    """The named backend, or with "auto" the first that fits.

    Raises UnsupportedError with one line per backend tried and reason.
    """
    tried = list(BACKENDS) if name == "auto" else [name]
    reasons: list[str] = []
    for candidate in tried:
        backend = load_backend(candidate)
        against = backend.support.reasons_against(needs)
        if not against:
            return backend
        reasons += [f"{candidate}: {reason}" for reason in against]
    raise UnsupportedError("no attention backend can serve this model", reasons)
