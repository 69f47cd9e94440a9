"""What changes logits before a token is chosen: small objects, applied in one fixed order.

Each follows the requests that need it by their slot in the request table and does nothing for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.words.messages import NewRequestData

State = TypeVar("State")


@dataclass(frozen=True)
class MaskedRows:
    """``rows`` of the logits that are constrained, and for each the bits of what may come: [len(rows), words] int32."""

    rows: Sequence[int]
    bits: npt.NDArray[np.int32]


@dataclass(frozen=True)
class SamplingBatch:
    """The rows of the logits: whose they are and what came before.

    slots:      one per row, in the request table.
    num_tokens: [R] int64; tokens known (prompt and output), so also the absolute position of the one to sample.
    token_ids:  [slots, columns] int32, the request table's own array: row ``slots[r]`` holds ``num_tokens[r]`` tokens.
    masked:     the rows that a grammar constrains, if any.
    num_drafts: [R] int64; how many of a row's tokens, at their end, are drafts that may yet be wrong. Rows of one slot
                follow each other, the one without drafts first.
    """

    slots: Sequence[int]
    num_tokens: npt.NDArray[np.int64]
    token_ids: npt.NDArray[np.int32]
    masked: MaskedRows | None = None
    num_drafts: npt.NDArray[np.int64] | None = None

    def drafts(self, row: int) -> npt.NDArray[np.int32]:
        """The drafts among the tokens of a row; a view."""
        end = self.num_tokens[row]
        return self.token_ids[self.slots[row], end - (0 if self.num_drafts is None else self.num_drafts[row]) : end]

    def tokens(self, row: int, start: int = 0) -> npt.NDArray[np.int32]:
        """The tokens of a row from position ``start`` on; a view."""
        return self.token_ids[self.slots[row], start : self.num_tokens[row]]


class LogitsProcessor(Protocol):
    """Changes logits in place. A slot is added when its request starts (again), and removed when it ends."""

    def add(self, slot: int, request: NewRequestData) -> None: ...

    def remove(self, slot: int) -> None: ...

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        """Change rows of logits [R, V] float32; returns whether one may be left without a candidate."""
        ...


class Followed(Generic[State]):
    """What a processor keeps for each slot it follows, and which rows of a batch those are."""

    def __init__(self) -> None:
        self._states: dict[int, State] = {}

    def add(self, slot: int, state: State) -> None:
        self._states[slot] = state

    def remove(self, slot: int) -> None:
        self._states.pop(slot, None)

    def rows(self, batch: SamplingBatch) -> list[tuple[int, State]]:
        if not self._states:
            return []
        return [(row, self._states[slot]) for row, slot in enumerate(batch.slots) if slot in self._states]


class TextTokensOnly:
    """Ids from ``num_text_tokens`` on are rows of a padded vocabulary that mean nothing: never sampled."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._limits: Followed[int] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        if request.sampling.num_text_tokens < self._vocab_size:
            self._limits.add(slot, request.sampling.num_text_tokens)

    def remove(self, slot: int) -> None:
        self._limits.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        rows = self._limits.rows(batch)
        limits = {limit for _, limit in rows}
        if len(rows) == len(batch.slots) and len(limits) == 1:
            logits[:, limits.pop() :] = -torch.inf
            return True
        for row, limit in rows:
            logits[row, limit:] = -torch.inf
        return bool(rows)


class AllowedTokens:
    """``allowed_token_ids``: everything else is out."""

    def __init__(self) -> None:
        self._allowed: Followed[Tensor] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        allowed = request.sampling.params.allowed_token_ids
        if allowed:
            self._allowed.add(slot, torch.tensor(allowed))

    def remove(self, slot: int) -> None:
        self._allowed.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        rows = self._allowed.rows(batch)
        for row, ids in rows:
            kept = logits[row, ids]
            logits[row] = -torch.inf
            logits[row, ids] = kept
        return bool(rows)


@dataclass(frozen=True)
class _BadWords:
    always: list[int]
    by_last_prefix_token: dict[int, list[tuple[int, ...]]]
    longest: int
    num_prompt_tokens: int

    def blocked(self, output: list[int]) -> list[int]:
        """The ids that would complete a bad word after these output tokens."""
        if not output:
            return self.always
        words = self.by_last_prefix_token.get(output[-1], ())
        return self.always + [word[-1] for word in words if output[-len(word) + 1 :] == list(word[:-1])]


class BadWords:
    """``bad_words``: the last token of a word is out where the output ends with the tokens before it."""

    def __init__(self) -> None:
        self._words: Followed[_BadWords] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        words = request.sampling.bad_words_token_ids
        if not words:
            return
        longer: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                longer.setdefault(word[-2], []).append(tuple(word))
        always = [word[0] for word in words if len(word) == 1]
        longest = max(len(word) for word in words)
        self._words.add(slot, _BadWords(always, longer, longest, len(request.prompt_token_ids)))

    def remove(self, slot: int) -> None:
        self._words.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        changed = False
        for row, words in self._words.rows(batch):
            start = max(words.num_prompt_tokens, int(batch.num_tokens[row]) - words.longest + 1)
            blocked = words.blocked(batch.tokens(row, start).tolist())
            if blocked:
                logits[row, blocked] = -torch.inf
                changed = True
        return changed


@dataclass(frozen=True)
class _Minimum:
    num_tokens: int
    end_ids: Tensor


class MinTokens:
    """``min_tokens``: nothing that ends the request is sampled before the output is that long."""

    def __init__(self) -> None:
        self._minimums: Followed[_Minimum] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        params = request.sampling.params
        end_ids = sorted(request.sampling.end_token_ids)
        if params.min_tokens and end_ids:
            minimum = len(request.prompt_token_ids) + params.min_tokens
            self._minimums.add(slot, _Minimum(minimum, torch.tensor(end_ids)))

    def remove(self, slot: int) -> None:
        self._minimums.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        waiting = [(row, m) for row, m in self._minimums.rows(batch) if batch.num_tokens[row] < m.num_tokens]
        for row, minimum in waiting:
            logits[row, minimum.end_ids] = -torch.inf
        return bool(waiting)


@dataclass(frozen=True)
class _Bias:
    ids: Tensor
    values: Tensor


class LogitBias:
    """``logit_bias``: added to the logits as it is."""

    def __init__(self) -> None:
        self._biases: Followed[_Bias] = Followed()

    def add(self, slot: int, request: NewRequestData) -> None:
        bias = request.sampling.params.logit_bias
        if bias:
            values = torch.tensor(list(bias.values()), dtype=torch.float32)
            self._biases.add(slot, _Bias(torch.tensor(list(bias)), values))

    def remove(self, slot: int) -> None:
        self._biases.remove(slot)

    def apply(self, logits: Tensor, batch: SamplingBatch) -> bool:
        rows = self._biases.rows(batch)
        for row, bias in rows:
            logits[row, bias.ids] += bias.values
        return bool(rows)
