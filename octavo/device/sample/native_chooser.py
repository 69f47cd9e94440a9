"""The sampler's work on logits by native kernels: no vocabulary is sorted, rows are shared out over the threads."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.sample.chooser import ROW_CHOICE, RowChoices
from octavo.device.sample.logprobs import WHOLE_VOCABULARY
from octavo.device.sample.usable import clear_unusable
from octavo.words.messages import LogprobsRow


class NativeChooser:
    """As TorchChooser, in any batch and on any number of threads the same to the bit."""

    def __init__(self, native: NativeContext) -> None:
        assert ROW_CHOICE.itemsize == native.library.ROW_CHOICE_BYTES
        self._library = native.library
        self._pool = native.pool
        self._choices: RowChoices = np.empty(0, dtype=ROW_CHOICE)
        self._choices_at = 0
        self._logits: Callable[[], Tensor | None] = _nothing
        self._logits_at = _Place(0, 0, 0)

    def unusable_rows(self, logits: Tensor, what: str) -> dict[int, str]:
        return clear_unusable(logits, self._library.unusable_rows(self._pool, *self._place(logits)), what)

    def choose(
        self,
        logits: Tensor,
        choices: RowChoices,
        slots: Sequence[int],
        positions: Sequence[int],
        *,
        keep_logits: bool = False,
    ) -> list[int]:
        if choices is not self._choices:  # asking where an array lies takes longer than the rest
            assert choices.dtype == ROW_CHOICE and choices.flags.c_contiguous
            self._choices, self._choices_at = choices, choices.ctypes.data
        place = self._place(logits)
        assert len(slots) == place.num_rows
        token_ids: list[int] = self._library.choose_tokens(
            self._pool, place.address, place.vocab_size, self._choices_at, slots, positions, keep_logits
        )
        return token_ids

    def logprob_rows(self, logits: Tensor, token_ids: Tensor, num_best: Sequence[int]) -> list[LogprobsRow]:
        address, num_rows, vocab_size = self._place(logits)
        wanted = [vocab_size if k == WHOLE_VOCABULARY else min(k, vocab_size) for k in num_best]
        width, best = max(wanted, default=0), torch.tensor(wanted, dtype=torch.int64)
        token_ids = token_ids.contiguous()
        given, values = torch.empty(num_rows), torch.empty(num_rows, width)
        ranks, counts, ids = (torch.empty(shape, dtype=torch.int64) for shape in (num_rows, num_rows, values.shape))
        arrays = (token_ids, best, given, ranks, counts, ids, values)
        addresses = [array.data_ptr() for array in arrays]
        self._library.log_probabilities(self._pool, address, num_rows, vocab_size, width, *addresses)
        columns = (token_ids, given, ranks, counts, ids, values)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            LogprobsRow([token, *others[:count]], [logprob, *those[:count]], rank)
            for token, logprob, rank, count, others, those in rows
        ]

    def _place(self, logits: Tensor) -> _Place:
        """Asked once for each tensor: replays give the same one again and again, and torch is cold after a step."""
        if self._logits() is not logits:
            assert logits.dtype == torch.float32 and logits.is_contiguous()
            self._logits, self._logits_at = weakref.ref(logits), _Place(logits.data_ptr(), *logits.shape)
        return self._logits_at


class _Place(NamedTuple):
    address: int
    num_rows: int
    vocab_size: int


def _nothing() -> Tensor | None:
    return None
