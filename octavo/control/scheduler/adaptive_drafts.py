"""As many drafts as are worth their time, by what was measured; maybe none.

The rule: drafts are made after a step if with them the engine is expected to say LEAST_GAIN times the tokens per
second of plain decoding, which runs in bursts. A request has as many drafts as are likely enough right: each saves what
a token takes, times its chance, and has to take less than that.

Expected is what lately was. Where guesses can be told afterwards (n-grams), plain decoding goes on, and what drafts
would have brought is counted by what it says (trials). Other drafters are tried, rarely. Both take no more than
SHARE_TO_LEARN of the time of plain decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from octavo.control.request import NEVER, Request
from octavo.control.scheduler.drafts import AllDrafts, DraftCounts, DraftLimit, NoDrafts, room_for_drafts
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad
from octavo.control.scheduler.step_time import KEPT_PER_STEP, MOST_SURPRISE, ROWS_OF_WEIGHTS, Line

LEAST_GAIN = 1.05
"""Of guesses about as good as none, the lucky ones look best, and would be made for nothing."""

SHARE_TO_LEARN = 0.01
"""Of the time of steps without drafts, what may be spent on learning whether drafts would pay."""

STEPS_TO_LEARN, DRAFTS_TO_LEARN = 16, 2
"""A drafter that can only be judged by making drafts makes them this often first: a wrong judgement would last."""

STEPS_OF_A_TRY = 4
"""Later, where drafts are a loss, one draft is made so often to see whether they still are."""

MOST_DOUBLINGS = 6
"""Each try in vain doubles what has to be saved up before the next one, up to so many times."""

STEPS_BETWEEN_PLAIN, PLAIN_STEPS = 48, 4
"""After so many steps with such drafts some go without: what these take has to be known, to be beaten."""

FIRST_BURST = 4
"""Steps of a request's first burst where trials may show that drafts pay; a later one is as long as all before it."""

LEAST_READ = 8
"""What reading takes is learnt from so many tokens at least."""


class Prices(NamedTuple):
    """Seconds: of a step of plain decoding; of a step that may have drafts, besides ``draft`` for each of these.

    ``token`` is what plain decoding takes for one of a request, ``read`` a drafter for one that it was not told of.
    """

    plain: float
    step: float
    draft: float
    token: float
    read: float


class AdaptiveDrafts:
    """The rule of this file.

    ``one_by_one``: guessing takes time for each draft, not once for all of them. ``catches_up``: the drafter has to
    read what was said while it was not asked, prompts too: it must save more than that in what is to come.
    ``looks_back``: it can tell what it would have guessed.
    """

    def __init__(
        self,
        num_tokens: int,
        counts: DraftCounts,
        *,
        one_by_one: bool = False,
        catches_up: bool = False,
        looks_back: bool = False,
    ) -> None:
        self._num_tokens = num_tokens
        self._counts = counts
        self._one_by_one = one_by_one
        self._catches_up = catches_up
        self._looks_back = looks_back
        self._plain = Line(ROWS_OF_WEIGHTS)  # Seconds of a step by its rows, those of bursts too.
        self._with_drafts = Line(ROWS_OF_WEIGHTS)
        self._guess_seconds = self._read_seconds = 0.0
        self._credit = 0.0  # Seconds that learning may take.
        self._num_vain_tries = 0
        self._num_drafting = 0  # Steps with drafts since the last without any.
        self._is_plain_in_between = False

    # A step is decided

    def __call__(self, step: StepBuilder) -> dict[str, int]:
        wanted: dict[str, int] = {}
        between = STEPS_TO_LEARN // 4 if self._is_learning else STEPS_BETWEEN_PLAIN
        self._is_plain_in_between = not self._looks_back and self._num_drafting >= between
        if not self._is_plain_in_between:
            rooms = {request: self._room(request) for request in step.granted}
            requests = [request for request, room in rooms.items() if room > 0]
            wanted = self._wanted(requests, self._prices(len(step.granted)), len(step.granted))
        self._num_drafting = self._num_drafting + 1 if wanted else 0
        self._note(step, wanted)
        return wanted

    def trials(self, step: StepBuilder) -> dict[str, int]:
        if not self._looks_back or self._credit < 0.0:
            return {}
        return {request.request_id: self._num_tokens for request in step.granted if room_for_drafts(request) > 0}

    def steps_without(self, step: StepBuilder) -> int:
        if self._is_plain_in_between:
            return PLAIN_STEPS
        if not self._looks_back:
            return NEVER
        return min((max(FIRST_BURST, request.num_output_tokens) for request in step.granted), default=NEVER)

    def _room(self, request: Request) -> int:
        return min(self._num_tokens, room_for_drafts(request))

    def _wanted(self, requests: Sequence[Request], prices: Prices, num_rows: int) -> dict[str, int]:
        if self._is_learning:
            return {each.request_id: min(DRAFTS_TO_LEARN, self._room(each)) for each in requests}
        paying = self._paying(requests, prices, num_rows)
        if paying:
            self._num_vain_tries = 0
            for request in requests:
                request.num_tries_left = 0
            return paying
        return {} if self._looks_back else self._tried(requests, prices)

    @property
    def _is_learning(self) -> bool:
        return not self._looks_back and self._counts.num_asked < STEPS_TO_LEARN

    def _paying(self, requests: Sequence[Request], prices: Prices, num_rows: int) -> dict[str, int]:
        """Drafts by request, if they make a step worth taking: LEAST_GAIN times the tokens per second."""
        wanted, tokens, seconds = {}, float(num_rows), prices.step
        for request in requests:
            chances = self._counts.chances(request, self._room(request))
            number = next(
                (n for n, chance in enumerate(chances) if chance * prices.token <= prices.draft), len(chances)
            )
            guessed = self._counts.share_guessed(request)
            more_tokens, more_seconds = guessed * sum(chances[:number]), guessed * number * prices.draft
            more_seconds += self._reading_seconds(request, prices) * (1.0 + more_tokens)
            if more_tokens * prices.token > more_seconds:
                wanted[request.request_id] = number
                tokens, seconds = tokens + more_tokens, seconds + more_seconds
        return wanted if tokens * prices.plain >= LEAST_GAIN * num_rows * seconds else {}

    def _reading_seconds(self, request: Request, prices: Prices) -> float:
        """What a drafter has to read before it can guess, by token of the answer that is to come."""
        return self._num_unread(request) * prices.read / max(self._counts.tokens_to_come(request), 1.0)

    def _tried(self, requests: Sequence[Request], prices: Prices) -> dict[str, int]:
        """One draft of one request, to see whether drafts are still a loss, if enough was saved up for it."""
        for request in requests:
            if request.num_tries_left:
                request.num_tries_left -= 1
                return {request.request_id: 1}
        if not requests:
            return {}
        request = min(requests, key=self._num_unread)
        price = STEPS_OF_A_TRY * (prices.step - prices.plain + prices.draft) + self._num_unread(request) * prices.read
        if self._credit < price * 2 ** min(self._num_vain_tries, MOST_DOUBLINGS):
            return {}
        self._credit = 0.0
        self._num_vain_tries += 1
        request.num_tries_left = STEPS_OF_A_TRY - 1
        return {request.request_id: 1}

    def _note(self, step: StepBuilder, wanted: dict[str, int]) -> None:
        """What the step's seconds will be seconds of."""
        load, is_usual = step.load, True
        load.has_drafts = bool(wanted) or step.verifies_drafts
        for request in step.granted:
            number = wanted.get(request.request_id, 0)
            if number:
                # The first step with drafts lets a drafter catch up, the next tells what a draft takes.
                is_usual = is_usual and request.num_wanted_drafts > 0
                load.num_unread += self._num_unread(request)
                request.num_known_to_drafter = request.num_tokens + 1 + number
            request.num_wanted_drafts = number
        load.num_drafts = max(wanted.values(), default=0) if is_usual else 0

    def _num_unread(self, request: Request) -> int:
        if not self._catches_up:
            return 0
        return max(request.num_tokens - max(request.num_known_to_drafter, request.num_cached_tokens), 0)

    # A step returns

    def observe(self, load: StepLoad, num_steps: int, seconds: float, draft_seconds: float) -> None:
        self._observe_drafter(load, draft_seconds)
        if load.num_prefill_tokens or not load.num_decode_tokens:
            return
        line = self._with_drafts if load.has_drafts else self._plain
        expected = _at(line, load.num_decode_tokens)
        of_a_step = seconds / num_steps
        line.add(load.num_decode_tokens, min(of_a_step, MOST_SURPRISE * expected) if expected else of_a_step)
        if not load.has_drafts:
            self._credit += SHARE_TO_LEARN * seconds - draft_seconds

    def _observe_drafter(self, load: StepLoad, draft_seconds: float) -> None:
        """Learn what guessing takes, where nothing else was to be caught up with; and what reading takes."""
        if load.num_drafts and not load.num_prefill_tokens:
            seconds = draft_seconds / load.num_drafts if self._one_by_one else draft_seconds
            self._guess_seconds = _learnt(self._guess_seconds, seconds)
        elif load.num_unread >= LEAST_READ:
            read = max(draft_seconds - self._guess_seconds, 0.0) / load.num_unread
            self._read_seconds = _learnt(self._read_seconds, read)

    def _prices(self, num_rows: int) -> Prices:
        plain = _at(self._plain, num_rows)
        step, draft = plain, plain / (num_rows + ROWS_OF_WEIGHTS)
        if self._with_drafts.knows_something:
            step, draft = max(_at(self._with_drafts, num_rows), plain), self._with_drafts.coefficients()[1]
        if self._one_by_one:
            draft += self._guess_seconds / max(num_rows, 1)
        else:
            step += self._guess_seconds
        return Prices(plain, step, draft, plain / max(num_rows, 1), self._read_seconds)


def draft_limit(limits: SchedulerLimits, counts: DraftCounts) -> DraftLimit:
    """The rule of a scheduler."""
    if not limits.num_draft_tokens:
        return NoDrafts()
    if not limits.adapt_drafts:
        return AllDrafts(limits.num_draft_tokens)
    return AdaptiveDrafts(
        limits.num_draft_tokens,
        counts,
        one_by_one=limits.drafts_one_by_one,
        catches_up=limits.drafter_catches_up,
        looks_back=limits.drafter_looks_back,
    )


def _at(line: Line, num_rows: int) -> float:
    fixed, per_row = line.coefficients()
    return fixed + per_row * num_rows


def _learnt(known: float, seconds: float) -> float:
    if not known:
        return seconds
    return KEPT_PER_STEP * known + (1 - KEPT_PER_STEP) * min(seconds, MOST_SURPRISE * known)
