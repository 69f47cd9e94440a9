"""How the likeliest answers are searched for instead of sampled."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.words.errors import RequestError
from octavo.words.outputs import CompletionOutput

MAX_WIDTH = 256


class BeamSearch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """``width`` beams go on at each step; answers that ended are ranked by log-probability / length ** length_penalty.

    ``early_stopping`` as in Transformers: True ends as soon as ``width`` answers have ended, False when the best beam
    could not beat the worst of them at its present length, "never" when it could not at any length. Raises RequestError
    naming the field.
    """

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def __post_init__(self) -> None:
        if not isinstance(self.width, int) or isinstance(self.width, bool) or not 1 <= self.width <= MAX_WIDTH:
            raise _wrong("beam_width", f"must be an integer from 1 to {MAX_WIDTH}", self.width)
        penalty = self.length_penalty
        if isinstance(penalty, bool) or not isinstance(penalty, int | float) or not -100 <= penalty <= 100:
            raise _wrong("length_penalty", "must be a number from -100 to 100", penalty)
        if not (isinstance(self.early_stopping, bool) or self.early_stopping == "never"):
            raise _wrong("early_stopping", 'must be True, False or "never"', self.early_stopping)


class BeamSearchParams(msgspec.Struct, frozen=True, kw_only=True):
    """What ``LLM.beam_search`` is asked; see BeamSearch."""

    beam_width: int
    max_tokens: int | None = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False


class BeamSearchSequence(msgspec.Struct, kw_only=True):
    """One answer: ``tokens`` and ``text`` with the prompt before it, ``output`` without.

    ``score`` is ``cum_logprob`` by the length of the answer to the power of the penalty.
    """

    tokens: list[int]
    text: str
    cum_logprob: float
    score: float
    output: CompletionOutput


class BeamSearchOutput(msgspec.Struct, kw_only=True):
    """The answers to a prompt, best first."""

    prompt_token_ids: list[int]
    sequences: list[BeamSearchSequence]


def num_candidates(width: int, num_end_ids: int) -> int:
    """How many candidates each beam brings: ``width`` of them live on, even if as many as possible end."""
    return width * max(2, 1 + num_end_ids)


def _wrong(name: str, rule: str, got: Any) -> RequestError:
    return RequestError(f"{name} {rule}, got {got!r:.40}.", param=name)
