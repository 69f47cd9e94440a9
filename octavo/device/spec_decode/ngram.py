"""Drafts by n-grams: what followed the newest tokens the last time they were said is guessed to follow again.

This is prompt lookup: answers that repeat much of their prompt (edits, summaries, code) are guessed well, without any
second model.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from octavo.device.spec_decode.drafter import SaidTokens
from octavo.words.messages import NewRequestData


class NgramDrafter:
    """The tokens after the earliest place where the longest suffix of ``min_n`` .. ``max_n`` tokens was.

    Of a prompt that was given as embeddings no token is known: only what was said after it is looked through.
    """

    sees_all_steps = False

    def __init__(self, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n
        self._num_unknown: dict[int, int] = {}

    def add(self, slot: int, request: NewRequestData) -> None:
        if request.prompt_embeds:
            self._num_unknown[slot] = len(request.prompt_token_ids)

    def remove(self, slot: int) -> None:
        self._num_unknown.pop(slot, None)

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        drafts = {}
        for row in said.is_sampled.nonzero()[0].tolist():
            request_id = said.request_ids[row]
            if request_id in num_drafts:
                slot = int(said.slots[row])
                tokens = said.token_ids[slot, self._num_unknown.get(slot, 0) : said.num_tokens[row]]
                drafts[request_id] = self.guess(tokens, num_drafts[request_id]).tolist()
        return {request_id: guess for request_id, guess in drafts.items() if guess}

    def guess(self, token_ids: npt.NDArray[np.int32], most: int) -> npt.NDArray[np.int32]:
        """At most so many drafts after these tokens."""
        end = end_of_match(token_ids, self._min_n, self._max_n)
        return token_ids[end : end + most] if end is not None else token_ids[:0]


def end_of_match(token_ids: npt.NDArray[np.int32], min_n: int, max_n: int) -> int | None:
    """The position after the earliest earlier place of the longest suffix that has one, of ``min_n`` .. ``max_n``."""
    last = len(token_ids) - 1
    if last < 1:
        return None
    ends = np.flatnonzero(token_ids[:last] == token_ids[last])
    length, found = 1, None
    while ends.size:
        if length >= min_n:
            found = int(ends[0]) + 1
        if length == max_n:
            break
        # What ends in `length` tokens of the suffix is asked for one more.
        ends = ends[ends >= length]
        ends = ends[token_ids[ends - length] == token_ids[last - length]]
        length += 1
    return found
