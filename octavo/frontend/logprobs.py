"""From rows of log-probabilities to what a user reads."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from octavo.tokenizer.detokenizer import CharacterStream
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.messages import LogprobsRow
from octavo.words.outputs import Logprob

REPLACEMENT = "\ufffd"


class LogprobTexts:
    """Turns rows into dicts with the text of each candidate, along one sequence of tokens.

    A candidate says the characters that it would complete at its place: nothing while a character is unfinished, the
    whole character for the token that finishes it.
    """

    def __init__(self, tokenizer: Tokenizer | None, before: Sequence[int] = ()) -> None:
        """``before`` are the tokens ahead; ``tokenizer`` None leaves out all texts."""
        self._tokenizer = tokenizer
        self._stream = None if tokenizer is None else CharacterStream(tokenizer, before)

    def take(self, row: LogprobsRow) -> dict[int, Logprob]:
        """Return the candidates at the next position by falling log-probability, the chosen one among them."""
        chosen, *best = row.token_ids
        pairs = list(zip(best, row.logprobs[1:], range(1, len(best) + 1), strict=True))
        if chosen not in best:
            pairs.append((chosen, row.logprobs[0], row.rank))
        pending = b"" if self._stream is None else self._stream.pending
        found = {
            token_id: Logprob(logprob=logprob, rank=rank, decoded_token=self._text(token_id, pending))
            for token_id, logprob, rank in pairs
        }
        if self._stream is not None:
            self._stream.push(chosen)
        return found

    def _text(self, token_id: int, pending: bytes) -> str | None:
        if self._tokenizer is None:
            return None
        own = self._tokenizer.token_bytes(token_id)
        continued = _whole_characters(pending + own)
        # A candidate that breaks off an unfinished character is shown for what it says itself.
        return _whole_characters(own) if pending and REPLACEMENT in continued else continued


def prompt_logprobs(
    tokenizer: Tokenizer | None, prompt_token_ids: Sequence[int], rows: Iterable[LogprobsRow]
) -> list[dict[int, Logprob] | None]:
    """One entry per prompt token; the first, which nothing predicts, is None."""
    texts = LogprobTexts(tokenizer, prompt_token_ids[:1])
    return [None, *(texts.take(row) for row in rows)]


def _whole_characters(data: bytes) -> str:
    """Decode; an unfinished character at the end says nothing yet, broken bytes before it U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
