"""A choice of texts as a regular expression, by their common beginnings.

A grammar of thousands of alternatives would try all of them at every byte; here each byte leaves few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from os.path import commonprefix

SPECIAL = frozenset(r"\.+*?()|[]{}^$#&-~")
MOST_NESTING = 64
"""Groups inside each other: parsers of regular expressions have limits."""


def choice_regex(texts: Iterable[str]) -> str:
    """Matches each of the texts, and nothing else."""
    return _one_of(sorted(set(texts)), MOST_NESTING)


def _one_of(texts: Sequence[str], nesting: int) -> str:
    if nesting == 0:
        return "|".join(map(_escaped, texts))
    groups = (list(group) for _, group in groupby(texts, lambda text: text[:1]))
    return "|".join(_with_same_beginning(group, nesting - 1) for group in groups)


def _with_same_beginning(texts: Sequence[str], nesting: int) -> str:
    beginning = commonprefix([texts[0], texts[-1]])
    if len(texts) == 1:
        return _escaped(beginning)
    return f"{_escaped(beginning)}({_one_of([text[len(beginning) :] for text in texts], nesting)})"


def _escaped(text: str) -> str:
    return "".join(map(_escaped_character, text))


def _escaped_character(character: str) -> str:
    if character in SPECIAL:
        return f"\\{character}"
    return character if character.isprintable() else f"\\x{{{ord(character):x}}}"
