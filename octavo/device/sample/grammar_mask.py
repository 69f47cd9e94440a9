"""What a grammar allows, as one bit per token."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.sample.logits_processors import MaskedRows, SamplingBatch
from octavo.words.messages import GrammarMasks, NewRequestData

MaskTokens = Callable[[Tensor, MaskedRows], bool]
"""Logits [R, V], of which some rows are masked in place; says whether each of these has a candidate left."""


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


def mask_tokens(logits: Tensor, masked: MaskedRows) -> bool:
    """Put ids whose bit is not set to -inf, and those that have no bit; logits: [R, V] float32."""
    have_candidates = True
    for row, bits in zip(masked.rows, masked.bits, strict=True):
        allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: logits.shape[1]]
        target = logits[row]
        target[allowed.size :] = -torch.inf
        target[: allowed.size].masked_fill_(torch.from_numpy(allowed == 0), -torch.inf)
        have_candidates &= bool((target > -torch.inf).any())
    return have_candidates


def native_mask_tokens(native: NativeContext) -> MaskTokens:
    """The same by a native kernel: masks of a whole batch would take torch as long as a layer of the model."""

    def mask(logits: Tensor, masked: MaskedRows) -> bool:
        assert logits.dtype == torch.float32 and logits.is_contiguous()
        rows, bits = np.array(masked.rows, dtype=np.int64), np.ascontiguousarray(masked.bits)
        assert bits.dtype == np.int32 and len(bits) == len(rows) and (not len(rows) or rows.max() < len(logits))
        addresses = (rows.ctypes.data, len(rows), bits.ctypes.data, bits.shape[1])
        return bool(native.library.mask_tokens(native.pool, logits.data_ptr(), logits.shape[1], *addresses))

    return mask


class GrammarMask:
    """Everything that a row's grammar does not allow is out, ids beyond its mask too."""

    def __init__(self, mask_tokens: MaskTokens = mask_tokens) -> None:
        self._mask_tokens = mask_tokens

    def add(self, slot: int, request: NewRequestData) -> None: ...

    def remove(self, slot: int) -> None: ...

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        masked = batch.masked
        return masked is not None and not self._mask_tokens(logits, masked)
