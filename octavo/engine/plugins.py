"""Plugins: entry points of group ``octavo.plugins``, called before any worker exists.

A plugin is a function without arguments that adds to Octavo's tables (models, ops, executors). It runs once in
every process that starts an engine core.
"""

from __future__ import annotations

import difflib
import functools
import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points

from octavo.device.platform.torch_import import complete_torch
from octavo.words.errors import ConfigError, EngineStartError

GROUP = "octavo.plugins"

logger = logging.getLogger(__name__)


class PluginError(EngineStartError):
    """A plugin could not be loaded or failed; the message names it and its cause is chained."""

    def __init__(self, name: str, value: str, cause: BaseException) -> None:
        super().__init__(
            f"plugin {name!r} ({value}) failed; repair or uninstall it, or leave it out with --plugins.\n"
            f"{type(cause).__name__}: {cause}"
        )
        self.name = name


def load_plugins(asked: str | None, found: Iterable[EntryPoint] | None = None) -> list[str]:
    """Call the plugins that ``asked`` allows (comma-separated names; None = all, empty = none); return their names.

    ``found`` defaults to the installed entry points. Raises ConfigError for a name that is not installed and
    PluginError for a plugin that fails.
    """
    if asked == "":
        return []
    installed = {entry.name: entry for entry in (entry_points(group=GROUP) if found is None else found)}
    names = list(installed) if asked is None else [name.strip() for name in asked.split(",") if name.strip()]
    for name in names:
        if name not in installed:
            raise ConfigError(_not_installed(name, list(installed)))
        complete_torch()
        _call_once(installed[name])
        logger.info("Loaded plugin %s", name)
    return names


@functools.cache
def _call_once(entry: EntryPoint) -> None:
    try:
        entry.load()()
    except Exception as error:
        raise PluginError(entry.name, entry.value, error) from error


def _not_installed(name: str, installed: list[str]) -> str:
    nearest = difflib.get_close_matches(name, installed, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"no plugin {name!r} in entry-point group {GROUP!r}; installed: {', '.join(installed) or 'none'}.{hint}"
