"""The environment, and the only file that reads it.

Variables named ``OCTAVO_*`` steer logging, the cache folder and the build: nothing that changes an answer.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from octavo.words.errors import ConfigError

_TRUE = frozenset({"1", "true", "yes", "on"})
_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


@dataclass(frozen=True, kw_only=True)
class Environment:
    """What the environment says, as one frozen value.

    ``cache_root`` holds models under ``models/``; ``offline`` forbids every socket to a hub or a package index.
    """

    cache_root: Path
    offline: bool = False
    logging_level: str = "INFO"
    logging_json: bool = False


def read_environment(variables: Mapping[str, str] | None = None) -> Environment:
    """Read ``variables`` (default: this process's) once; whoever needs a setting is handed the value.

    Raises ConfigError for a logging level that is none.
    """
    found = os.environ if variables is None else variables
    return Environment(
        cache_root=_cache_root(found),
        offline=_is_true(found, "HF_HUB_OFFLINE") or _is_true(found, "TRANSFORMERS_OFFLINE"),
        logging_level=_logging_level(found),
        logging_json=_is_true(found, "OCTAVO_LOGGING_JSON"),
    )


def child_variables(**extra: str) -> dict[str, str]:
    """This process's variables with ``extra`` on top, for a child process."""
    return {**os.environ, **extra}


def _cache_root(variables: Mapping[str, str]) -> Path:
    asked = variables.get("OCTAVO_CACHE_ROOT")
    if asked:
        return Path(asked).expanduser()
    shared = variables.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "octavo"


def _logging_level(variables: Mapping[str, str]) -> str:
    level = variables.get("OCTAVO_LOGGING_LEVEL", "INFO").upper()
    if level not in _LEVELS:
        raise ConfigError(f"OCTAVO_LOGGING_LEVEL={level} cannot be had: give one of {', '.join(_LEVELS)}")
    return level


def _is_true(variables: Mapping[str, str], name: str) -> bool:
    return variables.get(name, "").strip().lower() in _TRUE
