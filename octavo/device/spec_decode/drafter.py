"""Who guesses the tokens that a request will say next."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.words.messages import NewRequestData

Trials: TypeAlias = dict[str, list[tuple[int, int]]]
"""By request: steps with drafts that could have been, each as how many drafts and how many of them are right."""


@dataclass(frozen=True, kw_only=True)
class SaidTokens:
    """A step that was sampled: R requests, what was computed of each, and what each says.

    slots:         [R] int64, the requests' rows of ``token_ids`` [slots, columns], the request table's own array:
                   ``num_tokens[r]`` tokens of each are known (prompt and output). What a drafter lays behind them is
                   lost with the next step.
    num_computed:  [R] int64, tokens that were computed before the step.
    num_kept:      [R] int64, those of the step that are tokens of the request: all but wrong drafts.
    is_sampled:    [R] bool, whether the newest token was said by this step; else the prompt goes on.
    hidden:        [T, hidden_size], the model's last hidden states; those of request r from ``first_rows[r]`` on. None
                   of a burst that is told of as one step.
    """

    request_ids: Sequence[str]
    slots: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    num_tokens: npt.NDArray[np.int64]
    num_computed: npt.NDArray[np.int64]
    num_kept: npt.NDArray[np.int64]
    is_sampled: npt.NDArray[np.bool_]
    hidden: Tensor | None
    first_rows: npt.NDArray[np.int64]

    def hidden_at(self, rows: npt.NDArray[np.int64]) -> Tensor:
        """The model's hidden states in some rows [S] of the step: [S, hidden_size]."""
        assert self.hidden is not None, "who needs them is told of every step"
        return self.hidden[torch.from_numpy(rows)]

    def tokens(self, row: int) -> npt.NDArray[np.int32]:
        """All that is known of request ``row``."""
        return self.token_ids[self.slots[row], : self.num_tokens[row]]

    def sampled_rows(self, request_ids: Container[str]) -> Iterator[int]:
        """The rows of those of these requests that have said something."""
        return (row for row in self.is_sampled.nonzero()[0].tolist() if self.request_ids[row] in request_ids)

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

    A slot is added when its request starts (again), and removed when it ends. ``follows_steps``: it is asked after
    every step, also where nothing is to be guessed, with the hidden states of that. ``looks_back``: it is told in
    hindsight of steps and bursts after which nothing is to be guessed.
    """

    follows_steps: bool
    looks_back: bool

    def add(self, slot: int, request: NewRequestData) -> None: ...

    def remove(self, slot: int) -> None: ...

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        """At most ``num_drafts`` tokens for those of the requests that were sampled and that it has a guess for."""
        ...

    def look_back(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> Trials:
        """Of these requests: what would have become of at most ``num_drafts`` at a time, where that can be told."""
        ...


class NoDrafter:
    """Speculation is off."""

    follows_steps = False
    looks_back = False

    def add(self, slot: int, request: NewRequestData) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def propose(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> dict[str, list[int]]:
        return {}

    def look_back(self, said: SaidTokens, num_drafts: Mapping[str, int]) -> Trials:
        return {}
