"""One step while it is being decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.control.request import Request
from octavo.words.messages import CachedRequestData, NewRequestData, SchedulerOutput


@dataclass(slots=True)
class StepLoad:
    """What a step computes. ``attended`` sums n (c + n / 2) over chunks of n prompt tokens after c others.

    ``num_drafts`` are the most that are guessed for a request after it; 0 where that is not done step after step.
    ``num_unread`` tokens of its requests are new to a drafter that is asked again. ``has_drafts``: some are verified
    or asked for.
    """

    num_decode_tokens: int = 0
    num_prefill_tokens: int = 0
    attended: float = 0.0
    num_drafts: int = 0
    num_unread: int = 0
    has_drafts: bool = False

    def add_chunk(self, num_tokens: int, num_computed_tokens: int) -> None:
        """Count a chunk of a prompt."""
        self.num_prefill_tokens += num_tokens
        self.attended += num_tokens * (num_computed_tokens + num_tokens / 2)


class StepBuilder:
    """Hands out the tokens of one step and notes down what the workers must be told.

    ``granted`` requests have tokens in the step; ``admitted`` ones join the running ones when the step is done. Workers
    are to forget ``dropped_ids``.
    ``num_held_back`` requests at the end of the running ones get nothing, because they are to make room as soon as the
    steps that hold them return. ``num_eligible`` counts the requests that could be given tokens, ``num_unfinished``
    those that lack some after it. ``load`` is what was given so far, its decodes counted at the end;
    ``prefill_seconds`` what its prompt tokens may take (None: nobody asked yet).
    """

    def __init__(self, step_id: int, *, token_budget: int, num_eligible: int) -> None:
        self.step_id = step_id
        self.token_budget = token_budget
        self.num_eligible = num_eligible
        self.num_held_back = self.num_unfinished = 0
        self.load = StepLoad()
        self.prefill_seconds: float | None = None
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []
        self.granted: list[Request] = []
        self.dropped_ids: list[str] = []
        self.block_copies: list[tuple[int, int]] = []
        self._new: list[NewRequestData] = []
        self._cached: list[CachedRequestData] = []
        self._num_scheduled: dict[str, int] = {}
        self._drafts: dict[str, list[int]] = {}
        self._num_decode_steps = 1

    @property
    def verifies_drafts(self) -> bool:
        return bool(self._drafts)

    @property
    def is_of_single_tokens(self) -> bool:
        """Whether it has requests, which the workers know, and each gets one token, without drafts."""
        if self._new or self._drafts or not self.granted:
            return False
        return sum(self._num_scheduled.values()) == len(self.granted)

    def add_running(self, request: Request, num_tokens: int, new_block_ids: tuple[list[int], ...]) -> None:
        """Give tokens to a request that the workers know."""
        self._cached.append(
            CachedRequestData(
                request_id=request.request_id,
                new_block_ids=new_block_ids,
                num_computed_tokens=request.num_computed_tokens,
            )
        )
        self._grant(request, num_tokens)

    def add_admitted(self, request: Request, num_tokens: int, block_ids: tuple[list[int], ...]) -> None:
        """Give tokens to a request that the workers do not know, or no longer."""
        self.admitted.append(request)
        self._tell_all(request, num_tokens, block_ids)

    def add_rewritten(self, request: Request, num_tokens: int, block_ids: tuple[list[int], ...]) -> None:
        """Give tokens to a running request that is not what the workers know of it, if they know anything."""
        if request.is_with_workers:
            self.dropped_ids.append(request.request_id)
        self._tell_all(request, num_tokens, block_ids)

    def decode_on(self, num_steps: int, new_block_ids: Sequence[tuple[list[int], ...]]) -> None:
        """Make a step of single tokens a burst of ``num_steps``, for which each request gets further blocks."""
        self._num_decode_steps = num_steps
        for request, known, block_ids in zip(self.granted, self._cached, new_block_ids, strict=True):
            request.num_computed_tokens += num_steps - 1
            request.num_output_placeholders += num_steps - 1
            known.new_block_ids = tuple([*a, *b] for a, b in zip(known.new_block_ids, block_ids, strict=True))

    def _tell_all(self, request: Request, num_tokens: int, block_ids: tuple[list[int], ...]) -> None:
        request.is_with_workers, request.is_rewritten = True, False
        self._new.append(
            NewRequestData(
                request_id=request.request_id,
                prompt_token_ids=request.prompt_token_ids,
                output_token_ids=request.output_token_ids,
                sampling=request.sampling,
                block_ids=block_ids,
                num_computed_tokens=request.num_computed_tokens,
                adapter=request.adapter,
                prompt_embeds=request.prompt_embeds,
            )
        )
        self._grant(request, num_tokens)

    def build(
        self,
        finished_request_ids: list[str],
        num_drafts: dict[str, int] | None = None,
        num_trial_drafts: dict[str, int] | None = None,
    ) -> SchedulerOutput:
        """The step as the workers get it."""
        num_tokens = sum(self._num_scheduled.values())
        self.load.num_decode_tokens = num_tokens - self.load.num_prefill_tokens
        return SchedulerOutput(
            step_id=self.step_id,
            new_requests=self._new,
            cached_requests=self._cached,
            num_scheduled_tokens=self._num_scheduled,
            total_num_scheduled_tokens=num_tokens,
            finished_request_ids=finished_request_ids,
            preempted_request_ids=self.dropped_ids,
            draft_token_ids=self._drafts,
            block_copies=self.block_copies,
            num_drafts=num_drafts or {},
            num_decode_steps=self._num_decode_steps,
            num_trial_drafts=num_trial_drafts or {},
        )

    def _grant(self, request: Request, num_tokens: int) -> None:
        self.token_budget -= num_tokens
        self.granted.append(request)
        self._num_scheduled[request.request_id] = num_tokens
        if num_tokens > 1 + len(request.draft_token_ids):
            self.load.add_chunk(num_tokens, request.num_computed_tokens)
        # Counted at once, not when the step returns: the next step may be decided before that.
        num_computed = request.num_computed_tokens = request.num_computed_tokens + num_tokens
        request.last_step_id = self.step_id
        num_drafts = num_computed - request.num_tokens - request.num_output_placeholders
        if num_drafts < 0:
            self.num_unfinished += 1
            return  # Still short of its newest token: this step samples nothing for it.
        if request.beam is not None:
            return  # What follows is chosen when all beams are there.
        request.num_output_placeholders += 1 + num_drafts
        if num_drafts:
            self._drafts[request.request_id] = request.draft_token_ids[:num_drafts]
        if request.draft_token_ids:
            request.draft_token_ids = []
