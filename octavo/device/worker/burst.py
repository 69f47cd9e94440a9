"""How far a burst has come: decode steps after each other, each with the tokens that the one before chose."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from octavo.words.messages import ModelRunnerOutput


class BurstProgress:
    """Gathers the steps of a burst in the ``output`` of its first.

    A request that ended goes on with the others, and what follows its end is for nobody. ``end_ids``: of each request.
    A step in which one fails is the last: what is wrong is met again, and told, by the next burst.
    """

    def __init__(self, output: ModelRunnerOutput, end_ids: Sequence[Collection[int]]) -> None:
        self._output = output
        self._end_ids = end_ids
        self._has_failed = bool(output.failed)
        self.going = [True] * len(end_ids)
        """Which requests have not ended."""
        self._note_ends(output.sampled_token_ids)

    @property
    def goes_on(self) -> bool:
        """Whether any request wants another token, and all can have it."""
        return any(self.going) and not self._has_failed

    def add(self, step: ModelRunnerOutput) -> None:
        """Add a step, in the order in which they are taken."""
        for rows, more_rows in zip(self._output.logprobs, step.logprobs, strict=True):
            if rows is not None and more_rows is not None:
                rows += more_rows
        self.add_tokens(step.sampled_token_ids, num_steps=1)
        self._has_failed = bool(step.failed)

    def add_tokens(self, token_ids: Sequence[Sequence[int]], *, num_steps: int) -> None:
        """Add what several steps brought to each request."""
        self._output.num_decode_steps += num_steps
        for known, more in zip(self._output.sampled_token_ids, token_ids, strict=True):
            known.extend(more)
        self._note_ends(token_ids)

    def _note_ends(self, token_ids: Sequence[Sequence[int]]) -> None:
        for row, ids in enumerate(token_ids):
            self.going[row] = self.going[row] and not any(token_id in self._end_ids[row] for token_id in ids)
