"""Why JSON schemas are refused, by what the refusals and the docs name."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "structured-output.md"

_SIGNS = {
    "branches of a oneOf may overlap": "oneOf",
    "min/maxProperties": "minProperties",
    "lookarounds not supported": "pattern",
    "Unknown format: ": "format",
    "circular references with sibling keys": "$ref",
    "is not present in a registry": "$ref",
    "patternProperty regexes": "patternProperties",
    "multipleOf": "multipleOf",
    "schema is false": "false",
    "satisfies the schema false": "false",
    "anyOf is empty": "false",
}
"""Words of a refusal -> what of a schema they name; an unheard-of one is an error."""

REFUSED_OF_REAL = {
    "not": 10, "format": 6, "oneOf": 2, "pattern": 1, "dependencies": 1, "minProperties": 1, "$ref": 1
}  # fmt: skip
"""Of the 300 real schemas (``tests/schemas.py``), by the keyword that is named."""
REFUSED_OF_200 = {"not": 8, "format": 3, "oneOf": 2, "pattern": 1, "dependencies": 1, "minProperties": 1}
"""Of the first 200."""


def reason_of(error: Exception) -> str:
    """What a refusal says beyond its first words, which every one has."""
    return str(error).partition(" cannot be used: ")[2]


def keywords_of(reason: str) -> list[str]:
    """The keywords that a refusal names."""
    if found := re.match(r"Unimplemented keys: (\[.*\])", reason):
        return list(json.loads(found[1]))
    return [next(keyword for sign, keyword in _SIGNS.items() if sign in reason)]


def counted(refusals: Iterable[Exception]) -> Counter[str]:
    """How many refusals name each keyword."""
    return Counter(keyword for error in refusals for keyword in keywords_of(reason_of(error)))


def documented_refusals() -> str:
    """The part of the page that names what is refused."""
    return next(part for part in PAGE.read_text().split("\n\n") if part.startswith("Refused, always "))
