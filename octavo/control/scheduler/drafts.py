"""What became of drafts, and who says how many are worth their time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from octavo.control.draft_record import DraftRecord
from octavo.control.request import NEVER, Request
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad

KEPT_OF_ALL = 0.95
"""What a step weighs in the record of all requests after the next one."""

KEPT_LENGTH = 0.9
"""The same of an answer in the mean length of answers."""

HOPED = 2 / 3
"""How likely drafts are taken to be right of which nothing is known, and that cannot be judged before they are made."""

HOPED_STEPS = 1.0
"""That hope counts as so many steps, for it must not outlive what is seen."""

EXPECTED_STEPS = 8.0
"""A request begins with what all requests have shown, which counts as so many steps of its own: of drafts that would be
left out after a few wrong ones nothing more is learnt. Where they are judged in hindsight it counts as one."""


class DraftCounts:
    """What became of drafts, and of those that were not made but judged in hindsight (trials).

    Totals since start: steps of requests that verified drafts, the drafts, those that were right, and these by place;
    and trials. ``num_asked`` steps were to have a guess. ``in_hindsight``: drafts are judged before they are made.
    """

    def __init__(self, *, in_hindsight: bool = False) -> None:
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = self.num_trials = 0
        self.num_accepted_tokens_per_pos: list[int] = []
        self.num_asked = 0
        self._hoped = 0.0 if in_hindsight else HOPED
        self._expected_steps = 1.0 if in_hindsight else EXPECTED_STEPS
        self._all = DraftRecord(KEPT_OF_ALL)
        self._mean_length = 0.0

    def totals(self) -> dict[str, Any]:
        """The totals by their names in SchedulerStats."""
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_accepted_tokens_per_pos": self.num_accepted_tokens_per_pos,
            "num_draft_trials": self.num_trials,
        }

    def observe(self, request: Request, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A step verified so many drafts of a request, of which the first few were right."""
        self.num_asked += 1
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        per_pos = self.num_accepted_tokens_per_pos
        per_pos.extend([0] * (num_draft_tokens - len(per_pos)))
        for position in range(num_accepted_tokens):
            per_pos[position] += 1
        self._record(request, num_draft_tokens, num_accepted_tokens)

    def observe_none(self, request: Request) -> None:
        """Drafts were asked for, and there was no guess."""
        self.num_asked += 1
        self._record(request, 0, 0)

    def observe_trials(self, request: Request, trials: Sequence[tuple[int, int]]) -> None:
        """What steps with drafts would have brought, had they been taken: numbers of drafts and of right ones."""
        self.num_trials += len(trials)
        for num_drafts, num_right in trials:
            self._record(request, num_drafts, num_right)

    def note_end(self, request: Request) -> None:
        """A request has said all."""
        length = request.num_output_tokens
        known = self._mean_length or length
        self._mean_length = KEPT_LENGTH * known + (1 - KEPT_LENGTH) * length

    def tokens_to_come(self, request: Request) -> float:
        """Of an answer: what it lacks to those before it, or as much as it has said; none of a first answer's start."""
        num_said = request.num_output_tokens
        return max(self._mean_length - num_said, num_said)

    def share_guessed(self, request: Request) -> float:
        """How likely there is a guess for a request."""
        usual = self._all.share_guessed(self._hoped, HOPED_STEPS)
        return request.drafts.share_guessed(usual, self._expected_steps)

    def chances(self, request: Request, most: int) -> list[float]:
        """How likely the first draft of a guess, the first two ... the first ``most`` are right.

        Of a draft as much is expected as of the one before it, unless all requests or this one have shown otherwise.
        """
        share, chance, chances = self._hoped, 1.0, []
        for place in range(most):
            usual = self._all.share_right(place, share, HOPED_STEPS)
            share = request.drafts.share_right(place, usual, self._expected_steps)
            chance *= share
            chances.append(chance)
        return chances

    def _record(self, request: Request, num_drafts: int, num_right: int) -> None:
        request.drafts.add(num_drafts, num_right)
        self._all.add(num_drafts, num_right)


class DraftLimit(Protocol):
    """Says how many tokens to guess after a step."""

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        """The most for each of the step's requests; none for those that are left out."""

    def trials(self, step: StepBuilder) -> dict[str, int]:
        """Of a step or burst without drafts: how many of which request are judged in hindsight, by what it says."""

    def steps_without(self, step: StepBuilder) -> int:
        """How many decode steps, a step without drafts included, may follow each other before it is asked again."""

    def observe(self, load: StepLoad, num_steps: int, seconds: float, draft_seconds: float) -> None:
        """A step with this load, or a burst of several, took so long, and guessing or judging beside."""


class NoDrafts:
    """Nobody drafts."""

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        return {}

    def trials(self, step: StepBuilder) -> dict[str, int]:
        return {}

    def steps_without(self, step: StepBuilder) -> int:
        return NEVER

    def observe(self, load: StepLoad, num_steps: int, seconds: float, draft_seconds: float) -> None:
        pass


class AllDrafts:
    """``num_tokens`` drafts for everybody who has room for them."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        most = {request.request_id: min(self._num_tokens, room_for_drafts(request)) for request in step.granted}
        return {request_id: number for request_id, number in most.items() if number > 0}

    def trials(self, step: StepBuilder) -> dict[str, int]:
        return {}

    def steps_without(self, step: StepBuilder) -> int:
        return 1

    def observe(self, load: StepLoad, num_steps: int, seconds: float, draft_seconds: float) -> None:
        pass


def room_for_drafts(request: Request) -> int:
    """Drafts that could follow the token which a step samples, with a token after them; none after a beam's."""
    if request.beam is not None:
        return 0
    return request.max_total_tokens - request.num_tokens - 2
