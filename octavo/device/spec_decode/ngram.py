"""Drafts by n-grams: what followed the newest tokens the first time they were said is guessed to follow again.

This is prompt lookup: answers that repeat much of their prompt (edits, summaries, code) are guessed well, without any
second model. What would have been guessed earlier can be told afterwards, so whether drafts pay is seen without making
any.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from octavo.device.spec_decode.drafter import SaidTokens, Trials
from octavo.device.spec_decode.verify import num_right
from octavo.words.messages import NewRequestData

TokenIds = npt.NDArray[np.int32]
TOKEN_BYTES = 4


class NgramIndex:
    """Where what was said last had been said before. Each token of a request is looked at once.

    ``follows[i]`` is the position after the earliest place of the longest of those n-grams of ``min_n`` .. ``max_n``
    tokens which end with token i and had been said before; 0 where none had.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        self.follows: list[int] = []
        self._max_n = max_n
        self._first_ends: list[tuple[int, dict[bytes, int]]] = [(n, {}) for n in range(max_n, min_n - 1, -1)]

    def extend(self, token_ids: TokenIds) -> None:
        """``token_ids`` are all of the request's, those that were looked at included."""
        first = len(self.follows)
        begin = max(first - self._max_n + 1, 0)
        read = token_ids[begin:].tobytes()
        for end in range(first + 1, len(token_ids) + 1):
            self.follows.append(self._place(read, (end - begin) * TOKEN_BYTES, end))

    def _place(self, read: bytes, stop: int, end: int) -> int:
        """What follows the tokens up to ``end``, whose bytes stop there in ``read``; their own place is noted."""
        found = 0
        for n, first_ends in self._first_ends:
            if n <= end:
                place = first_ends.setdefault(read[stop - n * TOKEN_BYTES : stop], end)
                found = found or (place if place < end else 0)
        return found


class _Said:
    """One request's tokens from ``start`` on (those before are not known), and how far drafts of them were judged."""

    def __init__(self, start: int, num_tokens: int, min_n: int, max_n: int) -> None:
        self.index = NgramIndex(min_n, max_n)
        self.start = start
        self.next_trial = num_tokens - start
        """Tokens that are known when the next guess is tried."""

    def guess(self, token_ids: TokenIds, most: int) -> list[int]:
        """What may follow these tokens."""
        self.index.extend(token_ids)
        self.next_trial = len(token_ids)
        return self._guess_after(len(token_ids), token_ids, most)

    def trials(self, token_ids: TokenIds, most: int) -> list[tuple[int, int]]:
        """What would have become of drafts, had they been made in steps up to here; a guess that may go on waits."""
        self.index.extend(token_ids)
        trials = []
        while 0 < self.next_trial < len(token_ids):
            drafts = self._guess_after(self.next_trial, token_ids, most)
            said = token_ids[self.next_trial : self.next_trial + len(drafts)].tolist()
            right = num_right(said, drafts[: len(said)])
            if right == len(said) < len(drafts):
                break
            trials.append((len(drafts), right))
            self.next_trial += 1 + right
        return trials

    def _guess_after(self, num_known: int, token_ids: TokenIds, most: int) -> list[int]:
        place = self.index.follows[num_known - 1] if num_known else 0
        drafts: list[int] = token_ids[place : min(place + most, num_known)].tolist() if place else []
        return drafts


class NgramDrafter:
    """The tokens after the earliest place where the longest suffix of ``min_n`` .. ``max_n`` tokens was.

    Of a prompt that was given as embeddings no token is known: only what was said after it is looked through.
    """

    follows_steps = False
    looks_back = True

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n
        self._said: dict[int, _Said] = {}

    def add(self, slot: int, request: NewRequestData) -> None:
        num_prompt = len(request.prompt_token_ids)
        start = num_prompt if request.prompt_embeds else 0
        # The next token comes with the prompt: a guess can follow it, and none can be it.
        num_tokens = num_prompt + len(request.output_token_ids) + 1
        self._said[slot] = _Said(start, num_tokens, self._min_n, self._max_n)

    def remove(self, slot: int) -> None:
        self._said.pop(slot, None)

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        drafts = {}
        for row in said.sampled_rows(num_drafts):
            mine, request_id = self._said[int(said.slots[row])], said.request_ids[row]
            drafts[request_id] = mine.guess(said.tokens(row)[mine.start :], num_drafts[request_id])
        return {request_id: guess for request_id, guess in drafts.items() if guess}

    def look_back(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> Trials:
        trials = {}
        for row in said.sampled_rows(num_drafts):
            mine, request_id = self._said[int(said.slots[row])], said.request_ids[row]
            trials[request_id] = mine.trials(said.tokens(row)[mine.start :], num_drafts[request_id])
        return trials
