from __future__ import annotations

import pytest

from octavo.words.errors import RequestError
from octavo.words.structured_outputs import MAX_REGEX_CHARACTERS, StructuredOutputParams


def test_a_regex_that_would_take_gigabytes_to_compile_is_refused_by_its_length() -> None:
    with pytest.raises(RequestError, match="regex may have at most 16,384 characters, got 600,000; write repetitions"):
        StructuredOutputParams(regex="(a|b)*" * 100_000)
    with pytest.raises(RequestError, match="whitespace_pattern may have at most 16,384 characters"):
        StructuredOutputParams(json_object=True, whitespace_pattern=" " * (MAX_REGEX_CHARACTERS + 1))
    assert StructuredOutputParams(regex="a" * MAX_REGEX_CHARACTERS).kind == "regex"
