"""How long steps take, learnt from those that ran, so that a long prompt does not make the other streams wait.

A step's seconds are those of its decodes and those of its prompt tokens. Decodes take f0 + f1 D for D tokens; a chunk
of n prompt tokens after c others takes r0 n + r1 n (c + n / 2), for each token also reads those before it. Both pairs
are least-squares fits, the second of seconds per token, in which a step counts for less with every step after it. Steps
of decodes alone teach what those take, and so does one with prompts that was over before its decodes should have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from octavo.control.request import Request
from octavo.control.scheduler.step_builder import StepBuilder, StepLoad

KEPT_PER_STEP = 0.9
"""What a step weighs in a fit after the next one: some ten steps are remembered."""

MOST_SURPRISE = 4.0
"""A step is believed to have taken this many times what was expected, and no more: the machine may have been busy."""

ROWS_OF_WEIGHTS = 8
"""While steps of one size alone were timed, reading the weights is taken to last as long as computing so many rows."""

FIRST_CHUNK = 64
"""Prompt tokens of a step beside decodes while no prompt token was timed."""

LEAST_CHUNK = 16
"""Prompt tokens that the first of those who have any gets at least: nobody starves."""

WHOLE_CHUNKS = 8
"""Larger chunks are multiples of this."""

RIDGE = 1e-2
NO_LIMIT = 1 << 62


class Line:
    """y = a + b x with a, b >= 0, by least squares; where all x are alike, b is what it was.

    At first a is taken for as much as ``first_equal`` x (0: as the x there are).
    """

    def __init__(self, first_equal: float = 0.0) -> None:
        self._first_equal = first_equal
        self._n = self._x = self._xx = self._y = self._xy = self._slope = 0.0

    @property
    def knows_something(self) -> bool:
        return self._n > 0.0

    def add(self, x: float, y: float, weight: float = 1.0) -> None:
        if not self.knows_something and x:
            self._slope = y / (x + (self._first_equal or x))
        kept, wx, wy = KEPT_PER_STEP, weight * x, weight * y
        self._n, self._x, self._xx = kept * self._n + weight, kept * self._x + wx, kept * self._xx + wx * x
        self._y, self._xy = kept * self._y + wy, kept * self._xy + wx * y
        self._slope = self.coefficients()[1]

    def coefficients(self) -> tuple[float, float]:
        if not self.knows_something:
            return 0.0, 0.0
        # The ridge leaves an answer where all x are the same.
        n, ridge = self._n, RIDGE * self._xx
        spread = max(self._xx - self._x * self._x / n, 0.0) + ridge
        if spread <= 0.0:
            return self._y / n, 0.0
        b = max((self._xy - self._x * self._y / n + ridge * self._slope) / spread, 0.0)
        a = (self._y - b * self._x) / n
        return (a, b) if a >= 0.0 else (0.0, self._xy / self._xx)


class StepTimeModel:
    """Predicts seconds from a load, and how many prompt tokens fit into some seconds."""

    def __init__(self) -> None:
        self._decodes = Line(ROWS_OF_WEIGHTS)
        self._chunks = Line()

    def observe(self, load: StepLoad, seconds: float) -> None:
        """A step with this load took so long."""
        expected = self.seconds(load)
        if expected > 0.0:
            seconds = min(seconds, MOST_SURPRISE * expected)
        if load.num_prefill_tokens:
            decodes = self.decode_seconds(load.num_decode_tokens)
            if seconds < decodes:
                # Else a wrong guess would keep prompts short, and with them beside the decodes no step would ever put
                # it right. What is known of prompts is as likely to be wrong: both take their share of the surprise.
                decodes *= seconds / max(expected, decodes)
                self._decodes.add(load.num_decode_tokens, decodes)
            num_tokens = load.num_prefill_tokens
            rest = (seconds - decodes) / num_tokens
            self._chunks.add(load.attended / num_tokens, rest, min(num_tokens / FIRST_CHUNK, 1.0))
        elif load.num_decode_tokens:
            self._decodes.add(load.num_decode_tokens, seconds)

    def seconds(self, load: StepLoad) -> float:
        """What a step is expected to take; 0 for what is not known yet."""
        per_token, per_attended = self._chunks.coefficients()
        chunks = per_token * load.num_prefill_tokens + per_attended * load.attended
        known = self._chunks.knows_something or not load.num_prefill_tokens
        return self.decode_seconds(load.num_decode_tokens) + chunks if known else 0.0

    def decode_coefficients(self) -> tuple[float, float]:
        """Seconds of a step of decodes, and of each token in it; zeros while none was timed."""
        return self._decodes.coefficients()

    def decode_seconds(self, num_tokens: int) -> float:
        """What the decodes of a step take."""
        fixed, per_token = self._decodes.coefficients()
        return fixed + per_token * num_tokens if num_tokens else 0.0

    def tokens_within(self, seconds: float, num_computed_tokens: int) -> int:
        """The longest chunk, after so many tokens, that takes at most ``seconds``."""
        if math.isinf(seconds):
            return NO_LIMIT
        if not self._chunks.knows_something:
            return FIRST_CHUNK
        if seconds <= 0.0:
            return 0
        per_token, slope = self._chunks.coefficients()
        linear = per_token + slope * num_computed_tokens
        # slope / 2 n^2 + linear n = seconds, in the form that no cancellation harms.
        divisor = linear + math.sqrt(linear * linear + 2.0 * slope * seconds)
        return int(2.0 * seconds / divisor) if divisor > 0.0 else NO_LIMIT


class StepTimeLimit:
    """A token limit: prompt tokens beside decodes are as many as fit into ``max_step_seconds`` with them.

    Where nothing decodes there is nobody to wait, and no limit. ``num_decodes`` counts the running requests that lack
    no more than their next token; ``num_cuts`` how often a chunk was made shorter.
    """

    def __init__(self, model: StepTimeModel, max_step_seconds: float, num_decodes: Callable[[], int]) -> None:
        self._model = model
        self._max_step_seconds = max_step_seconds
        self._num_decodes = num_decodes
        self.num_cuts = 0

    def __call__(self, num_tokens: int, request: Request, num_computed_tokens: int, step: StepBuilder) -> int:
        if num_tokens <= 1 + len(request.draft_token_ids):
            return num_tokens
        if step.prefill_seconds is None:
            step.prefill_seconds = self._prefill_seconds()
        spent = self._model.seconds(StepLoad(0, step.load.num_prefill_tokens, step.load.attended))
        at_most = self._model.tokens_within(step.prefill_seconds - spent, num_computed_tokens)
        if at_most > WHOLE_CHUNKS:
            at_most -= at_most % WHOLE_CHUNKS
        if not step.load.num_prefill_tokens:
            at_most = max(at_most, LEAST_CHUNK)
        if at_most >= num_tokens:
            return num_tokens
        self.num_cuts += 1
        return at_most

    def _prefill_seconds(self) -> float:
        num_decodes = self._num_decodes()
        return self._max_step_seconds - self._model.decode_seconds(num_decodes) if num_decodes else math.inf
