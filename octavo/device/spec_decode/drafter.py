"""Who guesses the tokens that a request will say next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.words.messages import NewRequestData


@dataclass(frozen=True, kw_only=True)
class SaidTokens:
    """A step that was sampled: R requests, what was computed of each, and what each says.

    slots:         [R] int64, the requests' rows of ``token_ids`` [slots, columns], the request table's own array:
                   ``num_tokens[r]`` tokens of each are known (prompt and output). What a drafter lays behind them is
                   lost with the next step.
    num_computed:  [R] int64, tokens that were computed before the step.
    num_kept:      [R] int64, those of the step that are tokens of the request: all but wrong drafts.
    is_sampled:    [R] bool, whether the newest token was said by this step; else the prompt goes on.
    hidden:        [T, hidden_size], the model's last hidden states; those of request r from ``first_rows[r]`` on.
    """

    request_ids: Sequence[str]
    slots: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int64]
    num_computed: npt.NDArray[np.int64]
    num_kept: npt.NDArray[np.int64]
    is_sampled: npt.NDArray[np.bool_]
    hidden: Tensor
    first_rows: npt.NDArray[np.int64]

    def wanted(self, num_drafts: Mapping[str, int]) -> npt.NDArray[np.int64]:
        """[R]: how many drafts are asked for each request."""
        return np.array([num_drafts.get(request_id, 0) for request_id in self.request_ids], dtype=np.int64)

    def by_request(
        self, rows: npt.NDArray[np.int64], drafts: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
    ) -> dict[str, list[int]]:
        """The first ``counts[i]`` of ``drafts[i]``, for the request of ``rows[i]``."""
        named = enumerate(zip(rows.tolist(), counts.tolist(), strict=True))
        return {self.request_ids[row]: drafts[index, :count].tolist() for index, (row, count) in named}


class Drafter(Protocol):
    """Guesses tokens, so that one step may verify several: a wrong guess costs time and changes no answer.

    A slot is added when its request starts (again), and removed when it ends. ``sees_all_steps``: it is asked after
    every step, also where nothing is to be guessed.
    """

    sees_all_steps: bool

    def add(self, slot: int, request: NewRequestData) -> None: ...

    def remove(self, slot: int) -> None: ...

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        """At most ``num_drafts`` tokens for those of the requests that were sampled and that it has a guess for."""
        ...


class NoDrafter:
    """Speculation is off."""

    sees_all_steps = False

    def add(self, slot: int, request: NewRequestData) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        return {}
