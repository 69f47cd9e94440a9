"""How an option is declared: one annotated field of a frozen dataclass, once.

    max_num_seqs: Annotated[int, Option("Most requests running at once.", at_least=1)] = 256

Keyword arguments, CLI flags, the docs table and YAML keys are derived from these fields by config/flat.py.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """Help text, bounds and spelling of one option.

    ``choices`` lists the allowed values; ``words`` are allowed beside the type (such as "auto" for an int);
    ``short`` is an extra CLI spelling; ``metavar`` names the value in help. ``listed``: a text with commas in it, for
    which a command line may have several words.
    """

    help: str
    at_least: float | None = None
    at_most: float | None = None
    choices: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    short: str | None = None
    metavar: str | None = None
    listed: bool = False
