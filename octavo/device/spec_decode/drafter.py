"""Who guesses the tokens that a request will say next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Drafter(Protocol):
    """Guesses tokens, so that one step may verify several: a wrong guess costs time and changes no answer."""

    def propose(
        self,
        request_ids: Sequence[str],
        slots: npt.NDArray[np.int64],
        token_ids: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.int64],
    ) -> dict[str, list[int]]:
        """Drafts for those of the requests that it has a guess for.

        slots: [R], the requests' rows of ``token_ids`` [slots, columns], which holds ``num_tokens[slot]`` tokens of
        each (prompt and output). Both belong to the caller.
        """
        ...


class NoDrafter:
    """Speculation is off."""

    def propose(
        self,
        request_ids: Sequence[str],
        slots: npt.NDArray[np.int64],
        token_ids: npt.NDArray[np.int32],
        num_tokens: npt.NDArray[np.int64],
    ) -> dict[str, list[int]]:
        return {}
