"""Bursts on the device: decode steps after each other, each with the tokens that the one before chose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from octavo.words.messages import ModelRunnerOutput, NewRequestData


class EndIds:
    """The ids that end each request, by slot: an engine need not be asked whether a burst is over."""

    def __init__(self) -> None:
        self._by_slot: dict[int, frozenset[int]] = {}

    def add(self, slot: int, request: NewRequestData) -> None:
        sampling = request.sampling
        self._by_slot[slot] = frozenset(sampling.eos_token_ids).union(sampling.params.stop_token_ids or ())

    def remove(self, slot: int) -> None:
        del self._by_slot[slot]

    def of(self, slots: Iterable[int]) -> list[frozenset[int]]:
        """Those of each slot."""
        return [self._by_slot[slot] for slot in slots]


class BurstProgress:
    """Gathers the steps of a burst in the ``output`` of its first.

    A request that ended goes on with the others, and what follows its end is for nobody. ``end_ids``: of each request.
    A step in which one fails is the last: what is wrong is met again, and told, by the next burst.
    """

    def __init__(self, output: ModelRunnerOutput, end_ids: Sequence[frozenset[int]]) -> None:
        self._output = output
        self._end_ids = end_ids
        self._has_failed = bool(output.failed)
        self._going = set(range(len(end_ids)))
        self._note_ends(output.sampled_token_ids)

    @property
    def goes_on(self) -> bool:
        """Whether any request wants another token, and all can have it."""
        return bool(self._going) and not self._has_failed

    def add(self, step: ModelRunnerOutput) -> None:
        """Add a step, in the order in which they are taken."""
        output = self._output
        output.num_decode_steps += 1
        for token_ids, more in zip(output.sampled_token_ids, step.sampled_token_ids, strict=True):
            token_ids += more
        for rows, more_rows in zip(output.logprobs, step.logprobs, strict=True):
            if rows is not None and more_rows is not None:
                rows += more_rows
        self._has_failed = bool(step.failed)
        self._note_ends(step.sampled_token_ids)

    def _note_ends(self, token_ids: Sequence[Sequence[int]]) -> None:
        self._going = {row for row in self._going if not self._end_ids[row].intersection(token_ids[row])}
