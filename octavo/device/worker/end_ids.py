"""The ids that end each request: the device need not ask whether a burst is over."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from octavo.words.messages import NewRequestData

MOST_END_IDS = 8
NO_ID = -1


class EndIds:
    """``ids``: [max_num_requests, MOST_END_IDS] int32 by slot of the request table, NO_ID where there are fewer.

    Of more than fit the lowest are kept: a burst may then go on behind an end, which harms nobody.
    """

    def __init__(self, max_num_requests: int) -> None:
        self.ids: npt.NDArray[np.int32] = np.full((max_num_requests, MOST_END_IDS), NO_ID, dtype=np.int32)

    def add(self, slot: int, request: NewRequestData) -> None:
        ids = sorted(request.sampling.end_token_ids)[:MOST_END_IDS]
        self.ids[slot] = ids + [NO_ID] * (MOST_END_IDS - len(ids))

    def remove(self, slot: int) -> None:
        self.ids[slot] = NO_ID

    def of(self, slots: Iterable[int]) -> list[set[int]]:
        """Those of each slot."""
        return [set(self.ids[slot].tolist()) - {NO_ID} for slot in slots]
