"""A decision: what every function of this package that decides something returns."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")


class Decision(NamedTuple, Generic[T]):
    """A value and the one line that says why."""

    value: T
    reason: str


def as_asked(value: T) -> Decision[T]:
    """What a user, or the option's default, says."""
    return Decision(value, "as asked, or the default")
