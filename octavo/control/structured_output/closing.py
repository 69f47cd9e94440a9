"""How JSON is brought to its end where tokens run short: when that begins, and what of a grammar ends it soonest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.control.structured_output.grammar import Grammar, Way

Row = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
"""[tokens], one of each token of a vocabulary."""

INSIDE_TEXT = b"ABCDFGHIJKLMNOPQRSTUVWXYZ~^|#@"
"""Single bytes that stand in JSON's texts alone: where one may come, a bracket closes nothing."""

BRACKETS, BLANKS = b"}]", b" \t\n\r\f\v"
USUAL_TOKEN_BYTES = (4, 3, 2)
"""Where any token ends the JSON as soon as another, one of so many bytes stands for what the model will choose."""

LONGEST_END = 512
"""Tokens up to which the soonest end is looked for: one that is longer, or that nobody finds, counts as this long."""

LONGEST_TEXT = 128
"""Tokens after which a text that may still not end counts as one that never does, as one with a pattern may be."""

SPARE_TOKENS, SPARE_SHARE = 4, 0.25
"""What the end may take more tokens than the ones that were found for it: at all, and as a share of them."""


class JsonCloser:
    """Knows a vocabulary's tokens by what they do to JSON."""

    def __init__(self, tokens: Sequence[bytes], eos_token_ids: Sequence[int]) -> None:
        kinds = _Kinds(tokens)
        lengths, brackets, quotes = kinds.lengths, kinds.count(BRACKETS), kinds.count(b'"')
        has_no_blanks = (lengths > 0) & (kinds.count(BLANKS) == 0)
        separators = kinds.begins_with(b",:") & (quotes == lengths - 1) & (lengths <= 2)
        self._ends = _Tokens(np.isin(np.arange(len(tokens)), eos_token_ids))
        self._inside_text = _Tokens((lengths == 1) & (kinds.count(INSIDE_TEXT) == 1))
        self._closing_text = _Tokens(kinds.begins_with(b'"') & (brackets == lengths - 1))
        # Outside of texts, best first: close, go on to what is required, begin a text; rather no new level; no blanks.
        self._soonest = [
            _Tokens(flags)
            for flags in (
                (lengths > 0) & (brackets == lengths),
                separators,
                (lengths == 1) & (quotes == 1),
                has_no_blanks & (kinds.count(b"{[") == 0),
                has_no_blanks,
            )
        ]
        self._usual = [_row(lengths == number) for number in USUAL_TOKEN_BYTES]
        self.quote = tokens.index(b'"') if b'"' in tokens else None

    def narrow(self, row: Row) -> bool:
        """Leave of a mask's row the tokens that end the JSON soonest; False, and all, in a text that may not end."""
        if self._ends.keep(row):
            return True
        if self._inside_text.any(row):
            return self._closing_text.keep(row)
        return any(each.keep(row) for each in self._soonest)

    def usual(self, row: Row) -> int:
        """One of a row's tokens, such as a model would choose among them."""
        words = row.nonzero()[0]
        given = row[words]
        left = next((left for each in self._usual if (left := given & each[words]).any()), given)
        first = int(left.nonzero()[0][0])
        bits = int(left[first]) & 0xFFFFFFFF
        return 32 * int(words[first]) + (bits & -bits).bit_length() - 1


class Closing(Protocol):
    """Says from where on an answer's tokens may only bring it to its end."""

    def first_row(self, grammar: Grammar, draft_token_ids: Sequence[int], num_left: int) -> int | None:
        """Of the rows of a mask, one before each draft and one after them, the first that closes; None for none.

        ``num_left``: how many tokens ``max_tokens`` leaves from the first row on.
        """


class NeverCloses:
    """What is cut off is cut off."""

    def first_row(self, grammar: Grammar, draft_token_ids: Sequence[int], num_left: int) -> int | None:
        return None


class LastTokensClose:
    """The last ``num_tokens`` close."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def first_row(self, grammar: Grammar, draft_token_ids: Sequence[int], num_left: int) -> int | None:
        return max(num_left - self._num_tokens, 0)


class ClosesInTime:
    """Closing begins where it must, or the soonest end would not fit any more.

    That is looked at where ``CHECKPOINTS`` say, and depends on the answer and ``max_tokens``
    alone: drafts and replays change nothing.
    """

    def __init__(self) -> None:
        self._began_at: int | None = None
        """How many tokens were left."""
        self._ways: list[tuple[int, Way]] = []
        """What was found, with how many tokens were left."""

    def first_row(self, grammar: Grammar, draft_token_ids: Sequence[int], num_left: int) -> int | None:
        if self._began_at is not None and self._began_at > num_left:
            return 0
        self._began_at = None  # it was after a draft that was wrong
        while self._ways and self._ways[-1][0] <= num_left:
            self._ways.pop()  # likewise
        for row in range(len(draft_token_ids) + 1):
            most = CHECKPOINTS.get(num_left - row)
            if most is not None and not self._fits(grammar, draft_token_ids[:row], most, num_left - row):
                self._began_at = num_left - row
                return row
        return None

    def _fits(self, grammar: Grammar, draft_token_ids: Sequence[int], most: int, num_left: int) -> bool:
        way = grammar.way_to_end(draft_token_ids, most, self._ways[-1][1] if self._ways else None)
        self._ways.append((num_left, way))
        return way is not None


def closing_of(closing_tokens: int | None, *, is_json: bool) -> Closing:
    """As a request says it (StructuredOutputParams)."""
    if closing_tokens is None:
        return ClosesInTime() if is_json else NeverCloses()
    return LastTokensClose(closing_tokens) if closing_tokens else NeverCloses()


def _checkpoints() -> Iterator[tuple[int, int]]:
    """Each with what an end may take, and still fit if closing begins at the next one."""
    below, most = 0, 0
    while most < LONGEST_END:
        yield below + max(below // 8, 1), most
        below += max(below // 8, 1)
        most = max(int((below - SPARE_TOKENS) / (1 + SPARE_SHARE)), 0)


CHECKPOINTS = dict(_checkpoints())
"""Tokens left, closer to each other the fewer they are -> the longest end for which closing need not begin yet."""


class _Tokens:
    """Some of a vocabulary's tokens: the words of a row that hold any, mostly few, and their bits."""

    def __init__(self, flags: Flags) -> None:
        row = _row(flags)
        self._words = row.nonzero()[0]
        self._bits = row[self._words]

    def any(self, row: Row) -> bool:
        return bool((row[self._words] & self._bits).any())

    def keep(self, row: Row) -> bool:
        """Leave of a row these; all, and False, where it has none of them."""
        left = row[self._words] & self._bits
        if not left.any():
            return False
        row[:] = 0
        row[self._words] = left
        return True


class _Kinds:
    """Tokens by their bytes, all of a vocabulary at once."""

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self.lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
        self._text = np.frombuffer(b"".join(tokens) + b"\0", np.uint8)
        self._ends = self.lengths.cumsum()

    def count(self, wanted: bytes) -> npt.NDArray[np.int64]:
        """[tokens], how many of the bytes each has."""
        before = np.concatenate([[0], self._is_one_of(wanted).cumsum()])
        found: npt.NDArray[np.int64] = before[self._ends] - before[self._ends - self.lengths]
        return found

    def begins_with(self, wanted: bytes) -> Flags:
        """[tokens], whether each begins with one of the bytes."""
        found: Flags = (self.lengths > 0) & self._is_one_of(wanted)[self._ends - self.lengths]
        return found

    def _is_one_of(self, wanted: bytes) -> Flags:
        return np.isin(self._text, np.frombuffer(wanted, np.uint8))


def _row(flags: Flags) -> Row:
    bits = np.zeros((len(flags) + 31) // 32 * 32, dtype=np.bool_)
    bits[: len(flags)] = flags
    return np.packbits(bits, bitorder="little").view(np.int32)
