"""What became of drafts, and how many of them are worth their time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from octavo.control.request import NEVER, Request
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_time import KEPT_PER_STEP, MOST_SURPRISE, StepTimeModel

KEPT_OF_ALL = 0.98
"""What a request's step weighs in the share of right drafts of all requests after the next one."""

FIRST_RIGHT, FIRST_TRIED = 2.0, 3.0
"""The share that an engine begins with: hopeful, so that drafts get a chance. A request begins with the engine's."""

STEPS_BETWEEN_PROBES = 16
"""Where drafts are a loss, one is tried after this many steps: the answer may have come to a part that repeats."""

MOST_VAIN_PROBES = 4
"""Each probe that guesses wrong doubles the steps before the next one, up to so many times."""

MORE_PER_RIGHT = 2
"""A request begins with one draft, and gets so many more for each that was right lately: where guesses are wrong, they
have cost little by the time that is known."""

LEAST_GAIN = 1.05
"""Drafts must promise this many times the tokens per second: of guesses about as good as none, the lucky ones look
best, and would be tried for nothing."""


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

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        """Guessing after a step with this load took so long."""


class NoDrafts:
    """Nobody drafts."""

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        return {}

    def steps_without(self, step: StepBuilder) -> int:
        return NEVER

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        pass


class AllDrafts:
    """``num_tokens`` drafts for everybody who has room for them."""

    def __init__(self, num_tokens: int) -> None:
        self._num_tokens = num_tokens

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        most = {request.request_id: min(self._num_tokens, _room(request)) for request in step.granted}
        return {request_id: number for request_id, number in most.items() if number > 0}

    def steps_without(self, step: StepBuilder) -> int:
        return 1

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        pass


class DraftCosts(NamedTuple):
    """Seconds of one stream's next token, of computing a draft beside it, and of guessing: at all, and each draft."""

    token: float
    verified: float
    guessing: float
    guessed: float


class AdaptiveDrafts:
    """As many drafts as bring most tokens per second, by the acceptance and the times measured; maybe none.

    If each draft after right ones is right with probability p, d drafts bring 1 + p + ... + p ** d tokens, for the time
    of a step's token and d more, and of guessing. ``num_streams`` tells how many requests share what a step takes at
    least, and a drafter's steps. ``one_by_one``: guessing takes time for each draft, not once for all of them.
    """

    def __init__(
        self,
        num_tokens: int,
        counts: DraftCounts,
        step_times: StepTimeModel,
        num_streams: Callable[[], int],
        *,
        one_by_one: bool = False,
    ) -> None:
        self._num_tokens = num_tokens
        self._counts = counts
        self._step_times = step_times
        self._num_streams = num_streams
        self._one_by_one = one_by_one
        # The first step lets a second model catch up with what was said meanwhile, the next tells what a draft takes.
        self._steps_of_a_probe = 2 if one_by_one else 1
        self._guess_seconds: float | None = None

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        costs, wanted, most, is_usual = self._costs(), {}, 0, True
        for request in step.granted:
            room = min(self._num_tokens, _room(request))
            number = self._number(request, room, costs) if room > 0 else 0
            if number:
                wanted[request.request_id] = number
                most, is_usual = max(most, number), is_usual and request.num_wanted_drafts > 0
            request.num_wanted_drafts = number
        step.load.num_drafts = most if is_usual else 0
        return wanted

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        """Learn what guessing takes, where nothing else was to be caught up with."""
        if not load.num_drafts or load.num_prefill_tokens:
            return
        seconds = draft_seconds / load.num_drafts if self._one_by_one else draft_seconds
        known = self._guess_seconds
        if known is None:
            self._guess_seconds = seconds
        else:
            seconds = min(seconds, MOST_SURPRISE * known)
            self._guess_seconds = KEPT_PER_STEP * known + (1 - KEPT_PER_STEP) * seconds

    def steps_without(self, step: StepBuilder) -> int:
        return min((self._steps_before_probe(request) for request in step.granted if _room(request) > 0), default=NEVER)

    def _steps_before_probe(self, request: Request) -> int:
        wait = STEPS_BETWEEN_PROBES << min(request.num_vain_probes // self._steps_of_a_probe, MOST_VAIN_PROBES)
        return wait - request.num_steps_without_drafts

    def _costs(self) -> DraftCosts:
        fixed, per_token = self._step_times.decode_coefficients()
        num_streams = max(self._num_streams(), 1)
        guess = (self._guess_seconds or 0.0) / num_streams
        guessing, guessed = (0.0, guess) if self._one_by_one else (guess, 0.0)
        return DraftCosts(fixed / num_streams + per_token, per_token, guessing, guessed)

    def _number(self, request: Request, room: int, costs: DraftCosts) -> int:
        most = 1 + int(MORE_PER_RIGHT * request.num_right_drafts)
        number = min(best_number(self._counts.share_of_right(request), room, costs), most)
        if number:
            request.num_steps_without_drafts = request.num_vain_probes = 0
            return number
        request.num_steps_without_drafts += 1
        more = -self._steps_before_probe(request)
        if more >= self._steps_of_a_probe - 1:
            request.num_steps_without_drafts = 0
        return 1 if more >= 0 else 0


def best_number(right: float, most: int, costs: DraftCosts) -> int:
    """The number of drafts, up to ``most``, that brings most tokens per second; ``right``: the chance of each."""
    if costs.token <= 0.0:
        return most  # Nothing was measured yet.
    best, best_rate = 0, LEAST_GAIN / costs.token
    seconds, tokens, chance = costs.token + costs.guessing, 1.0, 1.0
    for number in range(1, most + 1):
        chance *= right
        tokens += chance
        seconds += costs.verified + costs.guessed
        rate = tokens / seconds
        if rate > best_rate:
            best, best_rate = number, rate
        elif best:
            break  # The rate has one maximum.
    return best


def draft_limit(
    limits: SchedulerLimits, counts: DraftCounts, step_times: StepTimeModel, num_streams: Callable[[], int]
) -> DraftLimit:
    """The rule of a scheduler."""
    if not limits.num_draft_tokens:
        return NoDrafts()
    if not limits.adapt_drafts:
        return AllDrafts(limits.num_draft_tokens)
    return AdaptiveDrafts(limits.num_draft_tokens, counts, step_times, num_streams, one_by_one=limits.drafts_one_by_one)


def _room(request: Request) -> int:
    """Drafts that could follow the token which a step samples, with a token after them; none after a beam's."""
    if request.beam is not None:
        return 0
    return request.max_total_tokens - request.num_tokens - 2
