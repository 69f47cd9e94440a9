"""Things named by text and loaded when they are needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any


def resolve(name: str) -> Any:
    """Load what ``name``, spelled ``module:Attribute`` (nested attributes with dots), stands for.

    Raises ValueError for another spelling, ImportError or AttributeError (naming ``name``) where nothing is there.
    """
    module_name, colon, path = name.partition(":")
    if not (module_name and colon and path):
        raise ValueError(f'{name!r} is not of the form "module:Name"')
    found: Any = import_module(module_name)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise AttributeError(f"{name!r}: {found!r} has no attribute {part!r}") from None
    return found
