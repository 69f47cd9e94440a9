"""As many drafts as are worth their time, by what was measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from octavo.control.request import NEVER, Request
from octavo.control.scheduler.drafts import AllDrafts, DraftCounts, DraftLimit, NoDrafts, room_for_drafts
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_time import KEPT_PER_STEP, MOST_SURPRISE, StepTimeModel

STEPS_BETWEEN_PROBES = 16
"""Where drafts are a loss, one is tried after this many steps: the answer may have come to a part that repeats."""

MOST_VAIN_PROBES = 4
"""Each probe that guesses wrong doubles the steps before the next one, up to so many times."""

SHARE_OF_PROBES = 0.02
"""Of the time of all steps, what probes may take of a drafter that first has to read what was said meanwhile."""

MORE_PER_RIGHT = 2
"""A request begins with one draft, and gets so many more for each that was right lately: where guesses are wrong, they
have cost little by the time that is known."""

LEAST_GAIN = 1.05
"""Drafts must promise this many times the tokens per second: of guesses about as good as none, the lucky ones look
best, and would be tried for nothing."""

STEPS_TO_LEARN = 16
"""Of an engine with a drafter that costs steps of its own, drafts are made this often before they are judged: a wrong
judgement of the first few would last."""

STEPS_BETWEEN_PLAIN, STEPS_BETWEEN_PLAIN_AT_FIRST = 48, 4
"""One of so many steps goes without such drafts: what a step without them takes has to be known, to be beaten."""

LEAST_READ = 8
"""What reading takes is learnt from so many tokens at least."""


class DraftCosts(NamedTuple):
    """Seconds of one stream's next token, of computing a draft beside it, and of guessing: at all, and each draft.

    ``read``: of each token that a drafter was not told of when it was said, and has to know before it guesses.
    """

    token: float
    verified: float
    guessing: float
    guessed: float
    read: float = 0.0


class Best(NamedTuple):
    """The number of drafts that brings most tokens per second, and what it saves of a token's seconds."""

    number: int
    saved: float


class AdaptiveDrafts:
    """As many drafts as bring most tokens per second, by the acceptance and the times measured; maybe none.

    If each draft after right ones is right with probability p, d drafts bring 1 + p + ... + p ** d tokens, for the time
    of a step's token and d more, and of guessing. ``num_streams`` tells how many requests share what a step takes at
    least, and a drafter's steps. ``one_by_one``: guessing takes time for each draft, not once for all of them.
    ``catches_up``: the drafter has to read what was said while it was not asked, prompts too: it must save more than
    that in what is to come.
    """

    def __init__(
        self,
        num_tokens: int,
        counts: DraftCounts,
        step_times: StepTimeModel,
        num_streams: Callable[[], int],
        *,
        one_by_one: bool = False,
        catches_up: bool = False,
    ) -> None:
        self._num_tokens = num_tokens
        self._counts = counts
        self._step_times = step_times
        self._num_streams = num_streams
        self._one_by_one = one_by_one
        self._catches_up = catches_up
        # The first step lets a second model catch up with what was said meanwhile, the next tells what a draft takes.
        self._steps_of_a_probe = 2 if one_by_one else 1
        self._guess_seconds: float | None = None
        self._read_seconds: float | None = None
        self._credit = 0.0  # Seconds that a probe may take.
        self._num_drafting = 0  # Steps with drafts since the last without any.
        self._is_plain_in_between = False

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        costs, wanted, load, is_usual = self._costs(), {}, step.load, True
        self._is_plain_in_between = self._one_by_one and self._num_drafting + 1 >= self._steps_between_plain()
        for request in () if self._is_plain_in_between else step.granted:
            room = min(self._num_tokens, room_for_drafts(request))
            number = self._number(request, room, costs) if room > 0 else 0
            if number:
                wanted[request.request_id] = number
                is_usual = is_usual and request.num_wanted_drafts > 0
                load.num_unread += self._num_unread(request)
                request.num_known_to_drafter = request.num_tokens + 1 + number
            request.num_wanted_drafts = number
        load.num_drafts = max(wanted.values(), default=0) if is_usual else 0
        self._num_drafting = self._num_drafting + 1 if wanted else 0
        return wanted

    @property
    def _is_learning(self) -> bool:
        return self._counts.num_drafts < STEPS_TO_LEARN

    def _steps_between_plain(self) -> int:
        return STEPS_BETWEEN_PLAIN_AT_FIRST if self._is_learning else STEPS_BETWEEN_PLAIN

    def steps_without(self, step: StepBuilder) -> int:
        if self._is_plain_in_between:
            return 1
        return min(
            (self._steps_before_probe(request) for request in step.granted if room_for_drafts(request) > 0),
            default=NEVER,
        )

    def skip(self, step: StepBuilder, num_steps: int) -> None:
        self._credit += SHARE_OF_PROBES * self._costs().token * num_steps * len(step.granted)
        for request in step.granted:
            request.num_steps_without_drafts += num_steps

    def observe(self, load: StepLoad, draft_seconds: float) -> None:
        """Learn what guessing takes, where nothing else was to be caught up with; and what reading takes."""
        if load.num_drafts and not load.num_prefill_tokens:
            seconds = draft_seconds / load.num_drafts if self._one_by_one else draft_seconds
            self._guess_seconds = _learnt(self._guess_seconds, seconds)
        elif load.num_unread >= LEAST_READ:
            guess = self._guess_seconds or 0.0
            self._read_seconds = _learnt(self._read_seconds, max(draft_seconds - guess, 0.0) / load.num_unread)

    def _costs(self) -> DraftCosts:
        fixed, per_token = self._step_times.decode_coefficients()
        num_streams = max(self._num_streams(), 1)
        guess = (self._guess_seconds or 0.0) / num_streams
        guessing, guessed = (0.0, guess) if self._one_by_one else (guess, 0.0)
        return DraftCosts(fixed / num_streams + per_token, per_token, guessing, guessed, self._read_seconds or 0.0)

    def _num_unread(self, request: Request) -> int:
        if not self._catches_up:
            return 0
        return max(request.num_tokens - max(request.num_known_to_drafter, request.num_cached_tokens), 0)

    def _number(self, request: Request, room: int, costs: DraftCosts) -> int:
        most = 1 + int(MORE_PER_RIGHT * request.num_right_drafts)
        if self._one_by_one and self._is_learning:
            return min(room, most)
        best = best_number(self._counts.share_of_right(request), room, costs)
        to_read = self._num_unread(request) * costs.read
        if best.number and best.saved * self._counts.tokens_to_come(request) >= to_read:
            request.num_steps_without_drafts = request.num_vain_probes = 0
            return min(best.number, most)
        return self._number_probed(request, to_read + self._steps_of_a_probe * (costs.verified + costs.guessed), costs)

    def _number_probed(self, request: Request, probe_seconds: float, costs: DraftCosts) -> int:
        """One where drafts are a loss and it is time to see whether they still are, else none."""
        self._credit += SHARE_OF_PROBES * costs.token
        request.num_steps_without_drafts += 1
        more = -self._steps_before_probe(request)
        if more < 0:
            return 0
        if more == 0 and self._catches_up:
            if self._credit < probe_seconds:
                request.num_steps_without_drafts = 0
                return 0
            self._credit = 0.0
        if more >= self._steps_of_a_probe - 1:
            request.num_steps_without_drafts = 0
        return 1

    def _steps_before_probe(self, request: Request) -> int:
        wait = STEPS_BETWEEN_PROBES << min(request.num_vain_probes // self._steps_of_a_probe, MOST_VAIN_PROBES)
        return wait - request.num_steps_without_drafts


def best_number(right: float, most: int, costs: DraftCosts) -> Best:
    """Of numbers of drafts up to ``most``; ``right``: the chance of each."""
    if costs.token <= 0.0:
        return Best(most, 0.0)  # Nothing was measured yet.
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
    return Best(best, costs.token - 1.0 / best_rate)


def draft_limit(
    limits: SchedulerLimits, counts: DraftCounts, step_times: StepTimeModel, num_streams: Callable[[], int]
) -> DraftLimit:
    """The rule of a scheduler."""
    if not limits.num_draft_tokens:
        return NoDrafts()
    if not limits.adapt_drafts:
        return AllDrafts(limits.num_draft_tokens)
    return AdaptiveDrafts(
        limits.num_draft_tokens,
        counts,
        step_times,
        num_streams,
        one_by_one=limits.drafts_one_by_one,
        catches_up=limits.drafter_catches_up,
    )


def _learnt(known: float | None, seconds: float) -> float:
    if known is None:
        return seconds
    return KEPT_PER_STEP * known + (1 - KEPT_PER_STEP) * min(seconds, MOST_SURPRISE * known)
