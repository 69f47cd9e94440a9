"""What turns text into token ids."""

from __future__ import annotations

from typing import Protocol


class Encoder(Protocol):
    """Text to ids. Thread-safe: nothing is changed by encoding but caches."""

    def encode(self, text: str, *, special: bool = True, at_start: bool = True) -> list[int]:
        """Return the ids of ``text``, without adding a beginning or end token.

        ``special`` False reads the text of special tokens as plain text. ``at_start`` False says that other text
        stands before this one, so that no prefix space is added.
        """
        ...
