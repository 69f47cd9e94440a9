"""How many tokens a request gets in a step: it asks for all it lacks, and each limit in turn may say fewer.

The scheduler applies an ordered tuple of these. 0 means: not in this step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from octavo.control.request import Request
from octavo.control.scheduler.step_builder import StepBuilder


class TokenLimit(Protocol):
    """One rule that cuts the tokens of a request in a step."""

    def __call__(self, num_tokens: int, request: Request, num_computed_tokens: int, step: StepBuilder) -> int:
        """Return at most ``num_tokens``, which would follow ``num_computed_tokens``."""


def request_length(num_tokens: int, request: Request, num_computed_tokens: int, step: StepBuilder) -> int:
    """The last token a request may have is sampled, never computed.

    This keeps drafts inside the context and inside max_tokens, and with steps in flight it stops a request whose
    end by length is certain.
    """
    at_most = request.max_total_tokens - 1 - num_computed_tokens
    return num_tokens if num_tokens < at_most else at_most


def step_budget(num_tokens: int, request: Request, num_computed_tokens: int, step: StepBuilder) -> int:
    """What is left of the tokens of this step."""
    return num_tokens if num_tokens < step.token_budget else step.token_budget


@dataclass(frozen=True)
class LongPrefill:
    """One request gets at most ``threshold`` tokens per step, so that others get some; alone it gets all."""

    threshold: int

    def __call__(self, num_tokens: int, request: Request, num_computed_tokens: int, step: StepBuilder) -> int:
        if num_tokens > self.threshold and step.num_eligible > 1:
            return self.threshold
        return num_tokens


@dataclass(frozen=True)
class WholePrefill:
    """Without chunked prefill: all the tokens a request lacks in one step, or none.

    A preempted request may have outgrown every step (``max_num_batched_tokens``): that one is chunked.
    """

    max_num_batched_tokens: int

    def __call__(self, num_tokens: int, request: Request, num_computed_tokens: int, step: StepBuilder) -> int:
        num_lacking = request.num_tokens - num_computed_tokens
        return 0 if num_tokens < num_lacking <= self.max_num_batched_tokens else num_tokens


def token_limits(
    *,
    enable_chunked_prefill: bool,
    long_prefill_token_threshold: int,
    max_num_batched_tokens: int,
    step_time: TokenLimit | None = None,
) -> tuple[TokenLimit, ...]:
    """The limits of a scheduler, in order. A threshold of 0 is no threshold; whole prompts take the time they take."""
    if not enable_chunked_prefill:
        return request_length, step_budget, WholePrefill(max_num_batched_tokens)
    limits: list[TokenLimit] = [request_length]
    if long_prefill_token_threshold:
        limits.append(LongPrefill(long_prefill_token_threshold))
    limits.append(step_budget)
    if step_time is not None:
        limits.append(step_time)
    return tuple(limits)
