"""SentencePiece-style BPE straight from a vocabulary with priorities; no table of merges is ever made.

A vocabulary of this kind implies its merges: two neighbours may merge if their concatenation is a piece. Writing them
all down (half a million for 262k pieces) takes seconds at start-up, looking them up as they come takes none.
Follows Hugging Face's reading of such vocabularies: both parts must be pieces, the better piece first, then the longer
left part, then the leftmost place.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from octavo.tokenizer.added_tokens import AddedTokens
from octavo.tokenizer.vocabulary import SPACE_SIGN

_CACHED_WORDS = 100_000
_LONGEST_CACHED = 64


@dataclass(frozen=True, kw_only=True)
class SentencePieceVocabulary:
    """What the encoder needs to know.

    ``pieces`` maps what ordinary text may become to ids; ``priority`` is by id, lower merges first; ``byte_ids`` are
    the 256 byte tokens, or empty; ``unknown_id`` stands for characters that have neither piece nor bytes. ``special``
    and ``added`` are matched whole. ``prefix_space`` puts a space before a text that does not begin with one.
    """

    pieces: Mapping[str, int]
    priority: Sequence[float]
    byte_ids: Sequence[int]
    unknown_id: int | None
    special: Mapping[str, int]
    added: Mapping[str, int]
    prefix_space: bool


class SentencePieceBPE:
    """The encoder for such a vocabulary."""

    def __init__(self, vocabulary: SentencePieceVocabulary) -> None:
        self._vocabulary = vocabulary
        self._whole = AddedTokens({**vocabulary.added, **vocabulary.special})
        self._whole_but_special = AddedTokens(vocabulary.added)
        self._word_border = _word_border(vocabulary.pieces)
        self._words: dict[str, tuple[int, ...]] = {}

    def encode(self, text: str, *, special: bool = True, at_start: bool = True) -> list[int]:
        """See Encoder."""
        ids: list[int] = []
        splitter = self._whole if special else self._whole_but_special
        for piece in splitter.split(text):
            if isinstance(piece, int):
                ids.append(piece)
            else:
                ids.extend(self._encode_text(piece, prefix=at_start and not ids))
        return ids

    def _encode_text(self, text: str, *, prefix: bool) -> list[int]:
        text = text.replace(" ", SPACE_SIGN)
        if prefix and self._vocabulary.prefix_space and not text.startswith(SPACE_SIGN):
            text = SPACE_SIGN + text
        ids: list[int] = []
        for word in self._word_border.split(text):
            known = self._words.get(word)
            ids.extend(self._encode_word(word) if known is None else known)
        return self._with_unknowns_fused(ids)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids = tuple(token_id for symbol in self._merged(word) for token_id in self._symbol_ids(symbol))
        if len(word) <= _LONGEST_CACHED:
            if len(self._words) >= _CACHED_WORDS:
                self._words = {}
            self._words[word] = ids
        return ids

    def _merged(self, word: str) -> list[str]:
        """Merge neighbours, best first, until none can; stale heap entries are recognised by their text."""
        symbols: list[str] = list(word)
        after = list(range(1, len(symbols) + 1))
        before = list(range(-1, len(symbols) - 1))
        heap: list[tuple[float, int, int, str]] = []

        def offer(left: int) -> None:
            right = after[left]
            if left < 0 or right >= len(symbols):
                return
            merged = symbols[left] + symbols[right]
            rank = self._rank(merged, symbols[left], symbols[right])
            if rank is not None:
                heapq.heappush(heap, (rank, -len(symbols[left]), left, merged))

        for place in range(len(symbols) - 1):
            offer(place)
        while heap:
            *_, left, merged = heapq.heappop(heap)
            right = after[left]
            if right >= len(symbols) or not symbols[left] or symbols[left] + symbols[right] != merged:
                continue
            symbols[left], symbols[right] = merged, ""
            after[left] = after[right]
            if after[right] < len(symbols):
                before[after[right]] = left
            if before[left] >= 0:
                offer(before[left])
            offer(left)
        return [symbol for symbol in symbols if symbol]

    def _rank(self, merged: str, left: str, right: str) -> float | None:
        pieces = self._vocabulary.pieces
        token_id = pieces.get(merged)
        if token_id is None or left not in pieces or right not in pieces:
            return None
        return self._vocabulary.priority[token_id]

    def _symbol_ids(self, symbol: str) -> Sequence[int]:
        token_id = self._vocabulary.pieces.get(symbol)
        if token_id is not None:
            return (token_id,)
        if self._vocabulary.byte_ids:
            return [self._vocabulary.byte_ids[byte] for byte in symbol.encode("utf-8")]
        return () if self._vocabulary.unknown_id is None else (self._vocabulary.unknown_id,)

    def _with_unknowns_fused(self, ids: list[int]) -> list[int]:
        """Several unknown characters in a row are one unknown token."""
        unknown = self._vocabulary.unknown_id
        if self._vocabulary.byte_ids or unknown is None or unknown not in ids:
            return ids
        return [each for place, each in enumerate(ids) if each != unknown or place == 0 or ids[place - 1] != unknown]


def _word_border(pieces: Mapping[str, int]) -> re.Pattern[str]:
    """Where a text may be cut without changing its tokens: before a space that no piece holds behind that character."""
    joined = "\0".join(pieces)
    crossing = {pair[0] for pair in re.findall(f"[^{SPACE_SIGN}\0]{SPACE_SIGN}", joined)}
    return re.compile(f"(?<=[^{SPACE_SIGN}{''.join(map(re.escape, sorted(crossing)))}])(?={SPACE_SIGN})")
