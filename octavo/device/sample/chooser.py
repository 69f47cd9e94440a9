"""What the sampler asks of whoever works on logits: three questions, each about rows that do not know each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.sample.candidates import best_ids
from octavo.device.sample.distribution import Filters, draw
from octavo.device.sample.logprobs import logprob_rows
from octavo.device.sample.random_numbers import stream_keys
from octavo.device.sample.usable import unusable_rows
from octavo.words.messages import LogprobsRow

ROW_CHOICE = np.dtype(
    [
        ("seed", np.uint64),
        ("position", np.int64),
        ("choice_index", np.int64),
        ("top_k", np.int64),
        ("top_p", np.float64),
        ("min_p", np.float64),
        ("temperature", np.float32),
        ("purpose", np.uint32),
    ]
)
"""How a request's tokens are chosen; csrc/sampling.h has the same fields.

Seed, position (absolute, of a token, filled in where it is chosen), choice index and purpose name the stream of its
random numbers. The
temperature is 0 for the best candidate; top_k is 0, top_p 1 and min_p 0 where there is none.
"""

RowChoices: TypeAlias = npt.NDArray[Any]
"""[slots] of ROW_CHOICE."""

TILE_BYTES = 2 << 20
"""Logits worked on at a time: every temporary of a draw then stays in the processor's cache."""


class Chooser(Protocol):
    """Work on logits [R, V], float32 and contiguous."""

    def unusable_rows(self, logits: Tensor, what: str) -> dict[int, str]:
        """Rows that no token can be taken from, with the reason; their logits become zeros."""
        ...

    def choose(
        self,
        logits: Tensor,
        choices: RowChoices,
        slots: Sequence[int],
        positions: Sequence[int],
        *,
        keep_logits: bool = False,
    ) -> list[int]:
        """One token per row of usable logits, each as ``choices`` has it for its slot, for its position.

        ``keep_logits`` leaves in ``logits`` what each token was chosen from: after temperature, with everything that
        was filtered out at -inf. Otherwise they may be overwritten with anything.
        """
        ...

    def logprob_rows(self, logits: Tensor, token_ids: Tensor, num_best: Sequence[int]) -> list[LogprobsRow]:
        """One row per position: the given token with its rank, then its ``num_best`` best candidates (-1: all)."""
        ...


class TorchChooser:
    """The reference: torch and numpy."""

    def unusable_rows(self, logits: Tensor, what: str) -> dict[int, str]:
        return unusable_rows(logits, what)

    def choose(
        self,
        logits: Tensor,
        choices: RowChoices,
        slots: Sequence[int],
        positions: Sequence[int],
        *,
        keep_logits: bool = False,
    ) -> list[int]:
        choices = choices[list(slots)]
        choices["position"] = positions
        random = np.flatnonzero(choices["temperature"])
        all_random = random.size == len(choices)
        token_ids = torch.empty(random.size, dtype=torch.int64) if all_random else best_ids(logits)
        per_tile = max(1, TILE_BYTES // (4 * logits.shape[-1]))
        for start in range(0, random.size, per_tile):
            part = random[start : start + per_tile]
            rows, parameters = torch.from_numpy(part), choices[part]
            scaled = logits[rows] / torch.from_numpy(parameters["temperature"].copy())[:, None]
            filters = Filters(parameters["top_k"], parameters["top_p"], parameters["min_p"])
            token_ids[rows], chosen_from = draw(scaled, filters, _keys(parameters), keep_logits=keep_logits)
            if chosen_from is not None:
                logits[rows] = chosen_from
        chosen: list[int] = token_ids.tolist()
        return chosen

    def logprob_rows(self, logits: Tensor, token_ids: Tensor, num_best: Sequence[int]) -> list[LogprobsRow]:
        return logprob_rows(logits, token_ids, num_best)


def _keys(choices: RowChoices) -> npt.NDArray[np.uint64]:
    return stream_keys(choices["seed"], choices["choice_index"], choices["position"], choices["purpose"])
