"""The soonest way to JSON's end, found by going there with a copy of a request's matcher."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher

from octavo.control.structured_output.closing import LONGEST_END, LONGEST_TEXT, JsonCloser

MOST_MASKS = 64
"""Made to find one end: some milliseconds, in which nobody in the batch gets a token."""


class EndFinder:
    """Takes tokens with a ``matcher`` of its own, each such that the JSON ends soonest.

    A mask at every token would take long. So where ``known``, a way found from elsewhere in the same grammar, leads to
    the end, it is followed; and a text that may not end yet is gone through without masks.
    """

    def __init__(self, matcher: LLMatcher, closer: JsonCloser, num_mask_words: int, known: Sequence[int] = ()) -> None:
        self._matcher = matcher
        self._closer = closer
        self._row = np.zeros(num_mask_words, dtype=np.int32)
        self._known = list(known)
        self._words, self._bits = np.divmod(np.array(self._known, dtype=np.int32), 32)

    def find(self, most: int, most_masks: int = MOST_MASKS) -> list[int] | None:
        """At most ``most`` tokens up to the end; None where it takes more, or more masks are needed to find it."""
        way: list[int] = []
        for _ in range(most_masks):
            if self._matcher.is_stopped() or len(way) >= most:
                break
            way += self._onward()
        return way if self._matcher.is_stopped() and len(way) <= most else None

    def _onward(self) -> list[int]:
        """The next tokens, one or several, which the matcher then has taken."""
        self._matcher.unsafe_compute_mask_ptr(self._row.ctypes.data, self._row.nbytes)
        may_end = self._closer.narrow(self._row)
        known = self._known_tail() if may_end else None
        if known is not None:
            return known
        token_id = self._closer.usual(self._row)
        self._matcher.consume_token(token_id)
        return [token_id] if may_end else [token_id, *self._through_text(token_id)]

    def _known_tail(self) -> list[int] | None:
        """The shortest tail of the known way that leads to the end from here."""
        is_allowed = self._row[self._words] >> self._bits & 1
        for start in is_allowed.nonzero()[0][::-1]:
            tail = self._known[start:]
            if self._matcher.validate_tokens(tail) == len(tail):
                self._matcher.consume_tokens(tail)
                if self._matcher.is_stopped():
                    return tail
                self._matcher.rollback(len(tail))
        return None

    def _through_text(self, token_id: int) -> list[int]:
        """Again and again the same token, until the text may end or another must come.

        Asking for the quote takes a twentieth of the time of a mask. A pattern that the text may hold anywhere never
        comes on this way.
        """
        quote = self._closer.quote
        if quote is None:
            return []
        number = 0
        while not self._matcher.validate_tokens([quote]) and self._matcher.try_consume_tokens([token_id]):
            number += 1
            if number == LONGEST_TEXT:
                return [token_id] * LONGEST_END
        return [token_id] * number
