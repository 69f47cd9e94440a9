from __future__ import annotations

import pytest

from octavo.util.lazy import resolve


def test_a_name_resolves_to_what_it_names() -> None:
    from octavo.util import byte_size

    assert resolve("octavo.util.byte_size:parse_byte_size") is byte_size.parse_byte_size
    assert resolve("pathlib:Path.home")().is_absolute()


@pytest.mark.parametrize("name", ["octavo", "octavo.util:", ":x", ""])
def test_another_spelling_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="module:Name"):
        resolve(name)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(AttributeError, match="octavo.util.lazy:nothing"):
        resolve("octavo.util.lazy:nothing")
    with pytest.raises(ImportError, match="no_such_module"):
        resolve("octavo.no_such_module:x")
