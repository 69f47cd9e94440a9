"""What became of drafts, and how many of them are worth their time."""

from __future__ import annotations

from collections.abc import Callable

from octavo.control.request import Request
from octavo.control.scheduler.step_time import StepTimeModel

KEPT_PER_STEP = 0.9
"""What a step weighs in a request's share of right drafts after its next one."""

FIRST_RIGHT, FIRST_TRIED = 2.0, 3.0
"""The share that a request begins with: hopeful, so that drafts get a chance."""

STEPS_BETWEEN_PROBES = 16
"""Where drafts are a loss, one is tried after this many steps: the answer may have come to a part that repeats."""


class DraftCounts:
    """Totals since start: steps of requests that verified drafts, the drafts, and those that were right."""

    def __init__(self) -> None:
        self.num_drafts = self.num_draft_tokens = self.num_accepted_tokens = 0

    def observe(self, request: Request, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """A step verified so many drafts of a request, of which the first few were right."""
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        # Drafts after the first wrong one say nothing.
        num_tried = min(num_accepted_tokens + 1, num_draft_tokens)
        request.num_tried_drafts = KEPT_PER_STEP * request.num_tried_drafts + num_tried
        request.num_right_drafts = KEPT_PER_STEP * request.num_right_drafts + num_accepted_tokens


class DraftLimit:
    """Cuts drafts to the number that brings most tokens per second, by the acceptance and the step times measured.

    If each draft after right ones is right with probability p, d drafts bring 1 + p + ... + p ** d tokens, for the time
    of a step's token and d more. ``num_streams`` tells how many requests share what a step takes at least.
    """

    def __init__(self, step_times: StepTimeModel, num_streams: Callable[[], int]) -> None:
        self._step_times = step_times
        self._num_streams = num_streams

    def __call__(self, request: Request, draft_token_ids: list[int]) -> list[int]:
        """The drafts that are worth their time."""
        if not draft_token_ids:
            return draft_token_ids
        most = self._most(request, len(draft_token_ids))
        if most == 0:
            request.num_steps_without_drafts += 1
            most = 1 if request.num_steps_without_drafts >= STEPS_BETWEEN_PROBES else 0
        if most:
            request.num_steps_without_drafts = 0
        return draft_token_ids[:most]

    def _most(self, request: Request, num_drafts: int) -> int:
        fixed, per_token = self._step_times.decode_coefficients()
        right = (FIRST_RIGHT + request.num_right_drafts) / (FIRST_TRIED + request.num_tried_drafts)
        seconds, tokens, chance = fixed / max(self._num_streams(), 1) + per_token, 1.0, 1.0
        for number in range(num_drafts):
            chance *= right
            # One more draft pays while it brings more tokens per second than the step does without it.
            if chance * seconds < tokens * per_token:
                return number
            seconds, tokens = seconds + per_token, tokens + chance
        return num_drafts


def all_drafts(request: Request, draft_token_ids: list[int]) -> list[int]:
    """No limit."""
    return draft_token_ids
