"""What a grammar allows, as one bit per token."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from octavo.device.sample.logits_processors import MaskedRows, SamplingBatch
from octavo.words.messages import GrammarMasks, NewRequestData


def masked_rows(masks: GrammarMasks, row_of: Mapping[str, int]) -> MaskedRows:
    """The masks of a step by the logits' rows; ``row_of`` gives a request's first row, its drafts' rows follow."""
    bitmask = np.frombuffer(masks.bitmask, dtype=np.int32).reshape(-1, masks.num_words)
    rows: list[int] = []
    chosen: list[int] = []
    for request_id, (start, end) in masks.rows.items():
        if request_id in row_of:
            rows.extend(range(row_of[request_id], row_of[request_id] + end - start))
            chosen.extend(range(start, end))
    return MaskedRows(rows, bitmask[chosen])


class GrammarMask:
    """Everything that a row's grammar does not allow is out, ids beyond its mask too."""

    def add(self, slot: int, request: NewRequestData) -> None: ...

    def remove(self, slot: int) -> None: ...

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        masked = batch.masked
        if masked is None:
            return False
        for row, bits in zip(masked.rows, masked.bits, strict=True):
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: logits.shape[1]]
            target = logits[row]
            target[allowed.size :] = -torch.inf
            target[: allowed.size].masked_fill_(torch.from_numpy(allowed == 0), -torch.inf)
        return bool(masked.rows)
