"""Drafts by n-grams: what followed the newest tokens the last time they were said is guessed to follow again.

This is prompt lookup: answers that repeat much of their prompt (edits, summaries, code) are guessed well, without any
second model.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


class NgramDrafter:
    """The ``num_tokens`` tokens after the earliest place where the longest suffix of ``min_n`` .. ``max_n`` tokens was.

    Drafts end where the request would be ``max_model_len`` long.
    """

    def __init__(self, num_tokens: int, min_n: int, max_n: int, max_model_len: int) -> None:
        self._num_tokens = num_tokens
        self._min_n = min_n
        self._max_n = max_n
        self._max_model_len = max_model_len

    def propose(
        self,
        request_ids: Sequence[str],
        slots: npt.NDArray[np.int64],
        token_ids: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.int64],
    ) -> dict[str, list[int]]:
        drafts = {}
        for request_id, slot in zip(request_ids, slots, strict=True):
            guess = self.guess(token_ids[slot, : num_tokens[slot]])
            if guess.size:
                drafts[request_id] = guess.tolist()
        return drafts

    def guess(self, token_ids: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        """Drafts after these tokens, [0 .. num_tokens]."""
        # The last draft is followed by a sampled token, which must still fit.
        most = min(self._num_tokens, self._max_model_len - len(token_ids) - 1)
        end = end_of_match(token_ids, self._min_n, self._max_n)
        return token_ids[end : end + max(most, 0)] if end is not None else token_ids[:0]


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
