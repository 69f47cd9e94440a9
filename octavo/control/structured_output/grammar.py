"""What the engine asks of a grammar, whoever computes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.words.structured_outputs import StructuredOutputParams

MaskRows = npt.NDArray[np.int32]
"""[rows, words] int32: bit i of word w of a row says whether token 32 * w + i may come next."""


Way = Sequence[int] | None
"""Tokens up to the end; None where none were found."""


class Grammar(Protocol):
    """The state of one request's constraint: which tokens it has taken. Not thread-safe."""

    @property
    def error(self) -> str | None:
        """Why it cannot go on (a limit was met), or None."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow but the end."""

    def accept(self, token_ids: Sequence[int]) -> bool:
        """Take tokens; False, and in error, for one that it does not allow."""

    def fill(self, rows: MaskRows, draft_token_ids: Sequence[int]) -> None:
        """Fill row i with what may follow the first i drafts; rows after a draft that is not allowed allow all."""

    def narrow(self, row: npt.NDArray[np.int32]) -> None:
        """Leave of a row of JSON's mask only what brings it to its end soonest."""

    def way_to_end(self, draft_token_ids: Sequence[int], most: int, known: Way = None) -> Way:
        """Tokens that bring JSON to its end after the drafts, soon; None where that takes more than ``most``.

        ``known``: what was found before, at an earlier token: where it can be followed again, it is.
        """

    def copy(self) -> Grammar:
        """The same grammar, in the same state, for another request."""


class GrammarBackend(Protocol):
    """Makes grammars for one vocabulary. Thread-safe, and bounded in time and memory whatever it is given."""

    @property
    def num_mask_words(self) -> int:
        """Words in a row of a mask."""

    def compile(self, params: StructuredOutputParams) -> Grammar:
        """Raises RequestError for what cannot be compiled, saying why."""
