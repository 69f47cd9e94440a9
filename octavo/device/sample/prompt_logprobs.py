"""Log-probabilities of prompt tokens, each given the tokens before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from octavo.device.sample.chooser import Chooser, TorchChooser
from octavo.words.messages import LogprobsRow, NewRequestData

TILE_BYTES = 16 << 20
"""Most bytes of logits at a time: a long prompt times a large vocabulary would be gigabytes."""


class PromptLogprobs:
    """Which requests want the log-probabilities of their prompt, and how many candidates for each position."""

    def __init__(self, chooser: Chooser | None = None) -> None:
        """``chooser`` works on the logits (None: torch)."""
        self._chooser = chooser or TorchChooser()
        self._num_best: dict[int, int] = {}

    def add(self, slot: int, request: NewRequestData) -> None:
        wanted = request.sampling.params.prompt_logprobs
        if wanted is not None:
            self._num_best[slot] = wanted

    def remove(self, slot: int) -> None:
        self._num_best.pop(slot, None)

    @property
    def is_asked(self) -> bool:
        """Whether any request wants them."""
        return bool(self._num_best)

    def asking(self, slots: Iterable[int]) -> list[tuple[int, int]]:
        """(row, number of candidates) of the rows whose request asked."""
        return [(row, self._num_best[slot]) for row, slot in enumerate(slots) if slot in self._num_best]

    def score(
        self,
        hidden: Tensor,
        targets: Tensor,
        num_best: int,
        compute_logits: Callable[[Tensor], Tensor],
        vocab_size: int,
    ) -> tuple[list[LogprobsRow], str | None]:
        """One row per position of a chunk, in tiles of rows, and why they are not all there (None: they are).

        hidden: [n, hidden_size]. targets: [n] int64, the prompt token that follows each position.
        """
        rows: list[LogprobsRow] = []
        per_tile = max(1, TILE_BYTES // (4 * vocab_size))
        for start in range(0, len(targets), per_tile):
            logits = compute_logits(hidden[start : start + per_tile])
            for problem in self._chooser.unusable_rows(logits, "the model's logits for the prompt").values():
                return rows, problem
            tile = targets[start : start + per_tile]
            rows += self._chooser.logprob_rows(logits, tile, [num_best] * len(tile))
        return rows, None
