"""A mapping read from a file, whose values are checked as they are taken out of it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from octavo.words.errors import CheckpointError

MAX_JSON_BYTES = 256 * 1024 * 1024
MAX_INTEGER = 2**31 - 1

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Record:
    """Named values of a config file or of GGUF metadata.

    ``integer``, ``number`` and ``text`` raise CheckpointError, naming file and key, for a value that is missing (null
    counts as missing) and has no default, or that has the wrong type. The ``maybe_`` forms return None instead of
    raising for a missing one. ``prefix`` is put before every key.
    """

    file: Path
    values: Mapping[str, object]
    prefix: str = ""

    def __contains__(self, key: str) -> bool:
        return self.get(key) is not None

    def get(self, key: str) -> object:
        return self.values.get(self.prefix + key)

    def maybe_integer(self, key: str, *, at_least: int = 1) -> int | None:
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not at_least <= value <= MAX_INTEGER:
            raise self._wrong(key, f"is {_short(value)}; it must be an integer from {at_least} to {MAX_INTEGER}")
        return value

    def integer(self, key: str, default: int | None = None, *, at_least: int = 1) -> int:
        value = self.maybe_integer(key, at_least=at_least)
        return self._needed(key, default if value is None else value)

    def maybe_number(self, key: str) -> float | None:
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < 1e300:
            raise self._wrong(key, f"is {_short(value)}; it must be a finite number")
        return float(value)

    def number(self, key: str, default: float | None = None) -> float:
        value = self.maybe_number(key)
        return self._needed(key, default if value is None else value)

    def positive(self, key: str, default: float | None = None) -> float:
        """A number above 0, by which something is divided or whose root or logarithm is taken."""
        value = self.number(key, default)
        if value <= 0:
            raise self._wrong(key, f"is {value:g}; it must be above 0")
        return value

    def numbers(self, key: str) -> tuple[float, ...] | None:
        values = self.get(key)
        if values is None:
            return None
        if not isinstance(values, Sequence) or not all(isinstance(value, int | float) for value in values):
            raise self._wrong(key, f"is {_short(values)}; it must be a list of numbers")
        return tuple(float(value) for value in values)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, f"is {_short(value)}; it must be true or false")
        return value

    def maybe_text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self._wrong(key, f"is {_short(value)}; it must be text")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.maybe_text(key)
        return self._needed(key, default if value is None else value)

    def record(self, key: str) -> Record | None:
        """Return a nested mapping as a Record, None where it is missing."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self._wrong(key, f"is {_short(value)}; it must be an object")
        return Record(self.file, value)

    def _needed(self, key: str, value: Value | None) -> Value:
        if value is None:
            raise self._wrong(key, "is missing")
        return value

    def _wrong(self, key: str, problem: str) -> CheckpointError:
        return CheckpointError(self.file, f"{self.prefix + key!r} {problem}")


def is_unicode(text: str) -> bool:
    """Whether no half of a surrogate pair stands alone, as it can in JSON."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_json(path: Path) -> object:
    """Return the JSON value in a file; CheckpointError where it is missing, too large, or no JSON."""
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise CheckpointError(path, f"{size} bytes of JSON; at most {MAX_JSON_BYTES} are read")
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(path, f"cannot be read: {error.strerror}") from error
    except RecursionError as error:
        raise CheckpointError(path, "JSON nested too deeply") from error
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(path, f"is not valid JSON: {error}") from error


def read_json_record(path: Path) -> Record:
    """Return the JSON object in a file as a Record; CheckpointError as in ``read_json``."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise CheckpointError(path, f"holds a JSON {type(value).__name__}; an object is expected")
    return Record(path, value)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
