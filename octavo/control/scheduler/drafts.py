"""What became of drafts, and how many of them are worth their time."""

from __future__ import annotations

from typing import Any, Protocol

from octavo.control.request import NEVER, Request
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_time import KEPT_PER_STEP

KEPT_OF_ALL = 0.98
"""What a request's step weighs in the share of right drafts of all requests after the next one."""

FIRST_RIGHT, FIRST_TRIED = 2.0, 3.0
"""The share that an engine begins with: hopeful, so that drafts get a chance. A request begins with the engine's."""

TRIED_OF_NONE = 0.2
"""What it weighs beside a wrong draft that there was no guess: it has cost a burst."""


class DraftCounts:
    """What became of drafts.

    Totals since start: steps of requests that verified drafts, the drafts, those that were right, and these by place.
    """

    def __init__(self) -> None:
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0
        self.num_accepted_tokens_per_pos: list[int] = []
        self._tried, self._right = FIRST_TRIED, FIRST_RIGHT
        self._mean_length = 0.0

    def totals(self) -> dict[str, Any]:
        """The totals by their names in SchedulerStats."""
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_accepted_tokens_per_pos": self.num_accepted_tokens_per_pos,
        }

    def observe(self, request: Request, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A step verified so many drafts of a request, of which the first few were right."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        per_pos = self.num_accepted_tokens_per_pos
        per_pos.extend([0] * (num_draft_tokens - len(per_pos)))
        for position in range(num_accepted_tokens):
            per_pos[position] += 1
        # Drafts after the first wrong one say nothing.
        num_tried = min(num_accepted_tokens + 1, num_draft_tokens)
        request.num_tried_drafts = KEPT_PER_STEP * request.num_tried_drafts + num_tried
        request.num_right_drafts = KEPT_PER_STEP * request.num_right_drafts + num_accepted_tokens
        request.num_vain_probes = 0 if num_accepted_tokens else request.num_vain_probes + 1
        self._tried = KEPT_OF_ALL * self._tried + num_tried
        self._right = KEPT_OF_ALL * self._right + num_accepted_tokens

    def observe_none(self, request: Request) -> None:
        """Drafts were asked for, and there was no guess."""
        request.num_tried_drafts += TRIED_OF_NONE
        request.num_vain_probes += 1

    def note_end(self, request: Request) -> None:
        """A request has said all."""
        length = request.num_output_tokens
        known = self._mean_length or length
        self._mean_length = KEPT_PER_STEP * known + (1 - KEPT_PER_STEP) * length

    def tokens_to_come(self, request: Request) -> float:
        """Of an answer: what it lacks to those before it, or as much as it has said; none of a first answer's start."""
        num_said = request.num_output_tokens
        return max(self._mean_length - num_said, num_said)

    def share_of_right(self, request: Request) -> float:
        """How likely a draft after right ones is right."""
        prior = FIRST_TRIED * (FIRST_RIGHT + self._right) / (FIRST_TRIED + self._tried)
        return (prior + request.num_right_drafts) / (FIRST_TRIED + request.num_tried_drafts)


class DraftLimit(Protocol):
    """Says how many tokens to guess after a step."""

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        """The most for each of the step's requests; none for those that are left out."""

    def steps_without(self, step: StepBuilder) -> int:
        """How many decode steps, a step without drafts included, may follow each other before it is asked again."""

    def skip(self, step: StepBuilder, num_steps: int) -> None:
        """So many more steps follow this one without a question."""

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        """Guessing after a step with this load took so long."""


class NoDrafts:
    """Nobody drafts."""

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        return {}

    def steps_without(self, step: StepBuilder) -> int:
        return NEVER

    def skip(self, step: StepBuilder, num_steps: int) -> None:
        pass

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        pass


class AllDrafts:
    """``num_tokens`` drafts for everybody who has room for them."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        most = {request.request_id: min(self._num_tokens, room_for_drafts(request)) for request in step.granted}
        return {request_id: number for request_id, number in most.items() if number > 0}

    def steps_without(self, step: StepBuilder) -> int:
        return 1

    def skip(self, step: StepBuilder, num_steps: int) -> None:
        pass

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        pass


def room_for_drafts(request: Request) -> int:
    """Drafts that could follow the token which a step samples, with a token after them; none after a beam's."""
    if request.beam is not None:
        return 0
    return request.max_total_tokens - request.num_tokens - 2
