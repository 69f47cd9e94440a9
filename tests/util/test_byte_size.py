from __future__ import annotations

import pytest

from octavo.util.byte_size import format_byte_size, parse_byte_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("0", 0), ("12", 12), ("1k", 1000), ("1KB", 1000), ("1KiB", 1024), ("1.5 Gib", 3 << 29), ("2T", 2 * 10**12)],
)
def test_sizes_are_read(text: str, num_bytes: int) -> None:
    assert parse_byte_size(text) == num_bytes


@pytest.mark.parametrize("text", ["", "G", "-1", "1X", "1 2", "1e9"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no size in bytes"):
        parse_byte_size(text)


def test_sizes_are_written_in_the_largest_unit() -> None:
    assert [format_byte_size(size) for size in (999, 1536, 3 << 19, 5 << 29)] == [
        "999 B", "1.50 KiB", "1.50 MiB", "2.50 GiB",
    ]  # fmt: skip
