"""Text out of a growing list of tokens, and the stop strings that end it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.sampling_params import SamplingParams

# Enough tokens of the prompt to hold the beginning of any character that the prompt leaves unfinished.
_PRIMING_TOKENS = 8


class CharacterStream:
    """Bytes of tokens in, whole characters out: no character is given before all of its bytes are there."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """``before`` are the tokens ahead of the stream; a character they leave unfinished is finished by it."""
        self._bytes_of = tokenizer.bytes_of
        self.pending = b""
        """The bytes of a character that is not whole yet."""
        self.push(*before[-_PRIMING_TOKENS:])

    def push(self, *token_ids: int) -> str:
        """Return the characters that these tokens complete."""
        return self._decode(self._bytes_of(token_ids), is_last=False)

    def end(self) -> str:
        """Return what an unfinished character comes to: U+FFFD, or nothing where all are whole."""
        return self._decode(b"", is_last=True)

    def _decode(self, data: bytes, *, is_last: bool) -> str:
        data = self.pending + data
        text, num_read = codecs.utf_8_decode(data, "replace", is_last)
        self.pending = data[num_read:]
        return text


class IncrementalDetokenizer:
    """The visible text of one choice, token by token.

    Ends as ``tokenizer.decode`` of all tokens does, but for an end-of-sequence or stop token that ended the choice: it
    is never shown, whatever skip_special_tokens says. ``spaces_between_special_tokens`` makes no difference: no
    decoder here puts any. Of several stop strings the one completed first wins, of those the longest; a stop string
    that is complete within the first min_tokens tokens is text like any other.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._stream = CharacterStream(tokenizer, prompt_token_ids)
        self._skipped = tokenizer.special_ids if params.skip_special_tokens else frozenset()
        self._stops = params.stop_strings
        self._shows_stop = params.include_stop_str_in_output
        self._min_tokens = params.min_tokens
        self._sent = 0
        self._held = 0 if self._shows_stop else max(map(len, self._stops), default=1) - 1
        self._ended = False
        self._unread: list[int] = []
        self._text = ""
        self.num_kept_tokens = 0

    def append(self, token_ids: Sequence[int], stop_terminated: bool = False) -> str | None:
        """Take new tokens; return the stop string that they complete, if any.

        ``stop_terminated`` says that the last of them is the token that ended the choice. After a stop string the text
        is final, and ``num_kept_tokens`` counts all tokens up to the one that completed it.
        """
        if not self._stops:
            self.num_kept_tokens += len(token_ids)
            self._unread.extend(token_ids[:-1] if stop_terminated else token_ids)
            return None
        for place, token_id in enumerate(token_ids):
            self.num_kept_tokens += 1
            if stop_terminated and place == len(token_ids) - 1:
                break
            if (hit := self._take(token_id)) is not None:
                return hit
        return None

    def take_delta(self, finished: bool) -> str:
        """Return the text since the last call; while not ``finished``, what may be the start of a stop string stays."""
        text = self.text
        if finished and not self._ended:
            self._ended = True
            self._text = text = text + self._stream.end()
        end = len(text) - (0 if finished else self._held)
        if end <= self._sent:
            return ""
        delta = text[self._sent : end]
        self._sent = end
        return delta

    @property
    def text(self) -> str:
        """All text so far, but for a character that is not whole yet."""
        if self._unread:
            self._text += self._stream.push(*[each for each in self._unread if each not in self._skipped])
            self._unread.clear()
        return self._text

    @property
    def visible_text(self) -> str:
        """All text that ``take_delta`` has given so far."""
        return self._text[: self._sent]

    def _take(self, token_id: int) -> str | None:
        new = "" if token_id in self._skipped else self._stream.push(token_id)
        if not new:
            return None
        before = len(self._text)
        self._text += new
        if self.num_kept_tokens <= self._min_tokens:
            return None
        return self._find_stop(before)

    def _find_stop(self, before: int) -> str | None:
        """Look for stop strings that end beyond character ``before``; cut the text at the first."""
        found = [
            (start + len(stop), start, stop)
            for stop in self._stops
            if (start := self._text.find(stop, max(0, before - len(stop) + 1))) >= 0
        ]
        if not found:
            return None
        end, start, stop = min(found)
        self._text = self._text[: end if self._shows_stop else start]
        self._ended = True
        return stop
