"""Tokens that are matched whole, before anything else looks at a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping


class AddedTokens:
    """Finds given texts in a text: leftmost first, and of those that start there the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token_id for text, token_id in ids.items() if text}
        lengths: dict[str, set[int]] = {}
        for text in self._ids:
            lengths.setdefault(text[0], set()).add(len(text))
        # A vocabulary may add thousands; an alternation of them all would be tried at every position.
        self._lengths = {first: sorted(sizes, reverse=True) for first, sizes in lengths.items()}
        firsts = "".join(map(re.escape, self._lengths))
        self._start = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the pieces of ``text`` in order: a token's id where one stands, else the (non-empty) text between."""
        done = 0
        for start, token in self.find(text):
            if start > done:
                yield text[done:start]
            yield self._ids[token]
            done = start + len(token)
        if done < len(text):
            yield text[done:]

    def find(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield (start, token text) of every token in ``text``, in order and without overlap."""
        position = 0
        while candidate := self._start.search(text, position):
            position = candidate.start()
            token = self._longest_at(text, position)
            if token is None:
                position += 1
                continue
            yield position, token
            position += len(token)

    def _longest_at(self, text: str, position: int) -> str | None:
        for length in self._lengths[text[position]]:
            token = text[position : position + length]
            if token in self._ids:
                return token
        return None
