"""What a step brought is booked: tokens are appended, some of them end their request, and clients are told.

Its counterpart is ``step_builder.py``, which notes down what a step is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.control.kv.manager import KVCacheManager
from octavo.control.request import Request, RequestStatus
from octavo.control.scheduler.beam_searches import BeamSearches
from octavo.control.scheduler.drafts import DraftCounts
from octavo.control.scheduler.roster import Roster
from octavo.control.scheduler.stopping import check_stop, tokenless_end
from octavo.words.messages import EngineCoreOutput, LogprobsRow, ModelRunnerOutput, SchedulerOutput

Outputs = dict[int, list[EngineCoreOutput]]
"""What to tell each client, by its index."""


class StepResults:
    """Books results in the requests of the roster; ``num_generation_tokens`` counts all tokens so far.

    Requests that ended while the step ran are passed over. Those that end now stay in the list of running ones: the
    caller drops them.
    """

    def __init__(
        self, roster: Roster, kv_cache: KVCacheManager, beam_searches: BeamSearches, drafts: DraftCounts
    ) -> None:
        self.num_generation_tokens = 0
        self._roster = roster
        self._kv_cache = kv_cache
        self._beam_searches = beam_searches
        self._drafts = drafts

    def take(self, step: SchedulerOutput, result: ModelRunnerOutput, outputs: Outputs) -> None:
        """Book all that a step brought; what is to be said of it is added to ``outputs``."""
        requests, drafts = self._roster.requests, step.draft_token_ids
        self._take_pooled(result.pooled, outputs)
        logprobs = result.logprobs or [None] * len(result.request_ids)
        for request_id, token_ids, rows in zip(result.request_ids, result.sampled_token_ids, logprobs, strict=True):
            request = requests.get(request_id)
            if request is None:
                continue
            if result.prompt_logprobs:
                self._take_prompt_logprobs(request, result)
            if not token_ids:
                continue  # Its prompt is not through yet.
            if request.beam is not None:
                self.num_generation_tokens += 1
                self._beam_searches.take_candidates(request.beam, rows, outputs)
                continue
            num_drafts = len(drafts.get(request_id, ())) if drafts else 0
            output = self._take_tokens(request, token_ids, num_drafts, step.num_decode_steps, rows)
            outputs.setdefault(request.client_index, []).append(output)
            if request_id in step.num_drafts or result.draft_token_ids:
                self._take_drafts(request, result.draft_token_ids.get(request_id, []))

    def _take_tokens(
        self,
        request: Request,
        token_ids: list[int],
        num_drafts: int,
        num_decode_steps: int,
        rows: list[LogprobsRow] | None,
    ) -> EngineCoreOutput:
        """Append sampled tokens up to the one that ends the request; take back what was counted of others.

        These are rejected drafts, and what is left of a burst that stopped early.
        """
        most, num_accepted = num_decode_steps + num_drafts, 0
        request.num_output_placeholders -= most
        request.num_computed_tokens -= most - len(token_ids)
        if num_drafts:
            num_accepted = len(token_ids) - 1
            self._drafts.observe(request, num_drafts, num_accepted)
        prompt_logprobs = None
        if request.prompt_logprobs:
            prompt_logprobs, request.prompt_logprobs = request.prompt_logprobs, []

        num_taken, finish_reason = 0, None
        for token_id in token_ids:
            num_taken += 1
            request.append_output_token(token_id)
            is_complete = request.constraint is not None and request.constraint.take(token_id)
            status = check_stop(request, is_complete)
            if status is not None:
                if len(token_ids) > 1:
                    self._kv_cache.cache_computed(request)
                self._roster.finish(request, status)
                finish_reason = request.finish_reason
                token_ids, rows = token_ids[:num_taken], rows[:num_taken] if rows else rows
                break
        self.num_generation_tokens += num_taken
        if finish_reason is not None:
            self._drafts.note_end(request)
        return EngineCoreOutput(
            request_id=request.request_id,
            new_token_ids=token_ids,
            new_logprobs=rows,
            prompt_logprobs=prompt_logprobs,
            finish_reason=finish_reason,
            stop_reason=request.stop_reason,
            num_cached_tokens=request.num_cached_tokens,
            num_preemptions=request.num_preemptions,
            first_scheduled_time=request.first_scheduled_time,
            num_draft_tokens=num_drafts,
            num_accepted_tokens=num_accepted,
        )

    def _take_pooled(self, pooled: Mapping[str, bytes], outputs: Outputs) -> None:
        """End the requests that wanted numbers and have them."""
        for request_id, numbers in pooled.items():
            request = self._roster.requests.get(request_id)
            if request is None:
                continue
            self._roster.finish(request, RequestStatus.FINISHED_STOPPED)
            outputs.setdefault(request.client_index, []).append(tokenless_end(request, pooled=numbers))

    def _take_prompt_logprobs(self, request: Request, result: ModelRunnerOutput) -> None:
        """Collect a chunk's rows; they are sent with the first token, so a preempted request's are not needed twice."""
        if not request.num_output_tokens:
            request.prompt_logprobs.extend(result.prompt_logprobs.get(request.request_id, ()))

    def _take_drafts(self, request: Request, drafts: list[int]) -> None:
        """Drafts continue the newest token: they are of no use when a later step already computes that."""
        if not drafts:
            self._drafts.observe_none(request)
        elif request.num_computed_tokens < request.num_tokens:
            request.draft_token_ids = drafts
