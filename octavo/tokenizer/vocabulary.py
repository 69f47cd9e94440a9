"""Token ids to bytes: how a vocabulary spells its tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from octavo.words.errors import RequestError

Spelling = Callable[[str], bytes]
"""From a token as the vocabulary writes it to the bytes it stands for."""

SPACE_SIGN = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: every byte is one visible character, printable ones are themselves."""
    visible = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    hidden = sorted(set(range(256)) - set(visible))
    return {chr(byte): byte for byte in visible} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTE_ALPHABET = _byte_alphabet()


def byte_level(token: str) -> bytes:
    """Spelling of byte-level BPE; a token outside the alphabet is literal text."""
    try:
        return bytes([BYTE_ALPHABET[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def sentencepiece(token: str) -> bytes:
    """Spelling of SentencePiece: U+2581 is a space, ``<0xE4>`` is one byte."""
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(SPACE_SIGN, " ").encode("utf-8")


def word_piece(token: str) -> bytes:
    """Spelling of WordPiece: a token begins a word, so a space stands before it, unless it starts with ##."""
    return (token[2:] if token.startswith("##") else " " + token).encode("utf-8")


class _Spelt(dict[int, bytes]):
    """The bytes of tokens by id, found out when they are first asked for."""

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell

    def __missing__(self, token_id: int) -> bytes:
        spelt = self[token_id] = self._spell(token_id)
        return spelt


class Vocabulary:
    """All tokens by id, and what they say.

    ``token_of`` gives a token as the vocabulary writes it, None for an id without one. ``added`` are the tokens that
    are matched whole and mean their literal text; ``special_ids`` are those of them that steer the model. ``size`` is
    one past the last id that has a token.
    """

    def __init__(
        self,
        token_of: Callable[[int], str | None],
        size: int,
        spelling: Spelling,
        *,
        added: Mapping[int, str],
        special_ids: Iterable[int],
    ) -> None:
        self._token_of = token_of
        self._spelling = spelling
        self._added = dict(added)
        self._bytes = _Spelt(self._spell)
        self.size = size
        self.special_ids = frozenset(special_ids)

    @property
    def special_texts(self) -> frozenset[str]:
        """The texts of the special tokens."""
        return frozenset(self._added[token_id] for token_id in self.special_ids)

    def token(self, token_id: int) -> str:
        """The token as the vocabulary writes it; empty for an id without a token."""
        token = self._token_of(token_id) if 0 <= token_id < self.size else None
        return "" if token is None else token

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; they need not be whole characters. Empty for an id without a token."""
        return self._bytes[token_id]

    def bytes_of(self, token_ids: Iterable[int]) -> bytes:
        """The bytes that several tokens stand for, one after the other."""
        return b"".join(map(self._bytes.__getitem__, token_ids))

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool) -> str:
        """The text of ``token_ids``; bytes that are no characters become U+FFFD.

        Raises RequestError for something that is no token id.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        try:
            joined = self.bytes_of(token_id for token_id in token_ids if token_id not in skipped)
        except TypeError as error:
            raise RequestError(f"token ids must be integers: {error}.", param="token_ids") from error
        return joined.decode("utf-8", errors="replace")

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode("utf-8")
        return self._spelling(self.token(token_id))
