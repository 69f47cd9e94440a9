from __future__ import annotations

import re

import pytest

from octavo.control.structured_output.choice_regex import choice_regex

AWKWARD = [
    "a",
    "ab",
    "a|b",
    "a.b",
    "",
    "(",
    "[x]",
    "\\d",
    "a\nb",
    "\t",
    "ü€😀",
    "€",
    "{2}",
    "^$",
    "x-y",
    "a/b",
    'c"d',
    "# &~",
]


def in_python(regex: str) -> re.Pattern[str]:
    """Python writes a character by its number in another way."""
    return re.compile(re.sub(r"\\x\{([0-9a-f]+)\}", lambda found: f"\\U{int(found[1], 16):08x}", regex))


@pytest.mark.parametrize("texts", [AWKWARD, ["a" * number for number in range(300)], ["same", "same"], ["one"]])
def test_each_text_matches_and_no_other_does(texts: list[str]) -> None:
    pattern = in_python(choice_regex(texts))
    assert all(pattern.fullmatch(text) for text in texts)
    others = {text + "!" for text in texts} | {text[:-1] for text in texts} | {"b", "(a|b)"}
    assert not any(pattern.fullmatch(other) for other in others - set(texts))


def test_common_beginnings_are_written_once() -> None:
    assert choice_regex(["option 1", "option 2", "other"]) == "o(ption (1|2)|ther)"
    assert choice_regex(["ab", "a"]) == "a(|b)"
