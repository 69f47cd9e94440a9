"""From the core's outputs to what users read: text, stop strings, log-probabilities, one answer per request."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from octavo.frontend.logprobs import LogprobTexts, prompt_logprobs
from octavo.tokenizer.detokenizer import IncrementalDetokenizer
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.words.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, FinishReason
from octavo.words.outputs import (
    CompletionOutput,
    Logprob,
    PoolingOutput,
    PoolingRequestOutput,
    RequestMetrics,
    RequestOutput,
)
from octavo.words.sampling_params import RequestOutputKind


@dataclass(frozen=True)
class ProcessedOutputs:
    """What a step means to users, and the core's requests that a stop string ended: the core must be told."""

    request_outputs: list[RequestOutput | PoolingRequestOutput] = field(default_factory=list)
    to_abort: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TakenOutputs:
    """The requests that a step moved, and the core's requests that a stop string ended."""

    moved: list[OpenRequest]
    to_abort: list[str]


class OutputProcessor:
    """Holds every unfinished request of one front end. Not thread-safe: one loop feeds it.

    Outputs are taken as they come and answers are made when they are asked for: who asks late gets one answer with
    everything that came meanwhile. ``tokenizer`` None serves token ids only. ``clock`` gives seconds like time.time.
    """

    def __init__(self, tokenizer: Tokenizer | None, *, clock: Callable[[], float] = time.time) -> None:
        self._tokenizer = tokenizer
        self._clock = clock
        self._choices: dict[str, _Choice] = {}

    def add_request(self, request_id: str, prompt: str | None, requests: Sequence[EngineCoreRequest]) -> OpenRequest:
        """Open a request: ``requests`` are its choices, as the input processor made them; ``prompt`` is its text."""
        request = OpenRequest(request_id, prompt, requests, self._tokenizer)
        for choice in request.choices:
            self._choices[choice.core_id] = choice
        return request

    def take(self, outputs: EngineCoreOutputs) -> TakenOutputs:
        """Take a step's outputs into their requests; those of requests that have ended here are ignored."""
        now = self._clock()
        moved: dict[OpenRequest, None] = {}
        to_abort = []
        for output in outputs.outputs:
            choice = self._choices.get(output.request_id)
            if choice is None:
                continue
            if choice.take(output):
                to_abort.append(choice.core_id)
            if choice.finish_reason is not None:
                del self._choices[choice.core_id]
            choice.request.note(choice, output, now)
            moved[choice.request] = None
        return TakenOutputs(list(moved), to_abort)

    def process_outputs(self, outputs: EngineCoreOutputs) -> ProcessedOutputs:
        """Take a step's outputs and answer at once: at most one RequestOutput for each request that moved."""
        taken = self.take(outputs)
        made = [request.take_output() for request in taken.moved]
        return ProcessedOutputs([output for output in made if output is not None], taken.to_abort)

    def end_request(self, request: OpenRequest, reason: FinishReason) -> list[str]:
        """End what is unfinished of a request, which then has its last output; return the ids in the core."""
        core_ids = [choice.core_id for choice in request.choices if self._choices.pop(choice.core_id, None)]
        request.end(reason, self._clock())
        return core_ids

    def find_requests(self, request_ids: Sequence[str]) -> list[OpenRequest]:
        """The unfinished requests with one of these users' ids."""
        wanted = set(request_ids)
        found = {choice.request: None for choice in self._choices.values() if choice.request.request_id in wanted}
        return list(found)

    def abort_requests(self, request_ids: Sequence[str]) -> list[str]:
        """Forget requests by their users' ids (all that share one) and return their ids in the core."""
        found = self.find_requests(request_ids)
        return [core_id for request in found for core_id in self.end_request(request, FinishReason.ABORT)]

    def has_unfinished_requests(self) -> bool:
        """Whether any choice still waits for outputs."""
        return bool(self._choices)

    @property
    def num_unfinished_choices(self) -> int:
        """Choices that still wait for outputs."""
        return len(self._choices)


class OpenRequest:
    """A user's request: its choices and what they share."""

    def __init__(
        self, request_id: str, prompt: str | None, requests: Sequence[EngineCoreRequest], tokenizer: Tokenizer | None
    ) -> None:
        first = requests[0]
        self.request_id = request_id
        self.prompt_token_ids = first.prompt_token_ids
        self.choices = [_Choice(self, request, tokenizer) for request in requests]
        self.metrics = RequestMetrics(arrival_time=first.arrival_time)
        self._prompt = prompt
        self._tokenizer = tokenizer if first.sampling.params.detokenize else None
        self._kind = first.sampling.params.output_kind
        self._num_unfinished = len(self.choices)
        self._prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        self._num_cached_tokens = 0
        self._pooling = first.sampling.pooling is not None
        self._preemptions: dict[str, int] = {}
        if first.sampling.params.prompt_logprobs is not None and len(self.prompt_token_ids) == 1:
            self._prompt_logprobs = [None]  # nothing to compute, so the core may send no rows

    @property
    def finished(self) -> bool:
        """Whether every choice has ended."""
        return self._num_unfinished == 0

    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens that the prefix cache had."""
        return self._num_cached_tokens

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` gives something, once the request has moved."""
        return self.finished or self._kind is not RequestOutputKind.FINAL_ONLY

    def note(self, choice: _Choice, output: EngineCoreOutput, now: float) -> None:
        """Take what an output of ``choice`` says about the request as a whole."""
        metrics = self.metrics
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = prompt_logprobs(self._tokenizer, self.prompt_token_ids, output.prompt_logprobs)
        if choice is self.choices[0]:  # the others find the first one's prompt in the cache
            self._num_cached_tokens = max(self._num_cached_tokens, output.num_cached_tokens)
        if output.num_preemptions:
            self._preemptions[output.request_id] = output.num_preemptions
            metrics.num_preemptions = sum(self._preemptions.values())
        metrics.num_draft_tokens += output.num_draft_tokens
        metrics.num_accepted_tokens += output.num_accepted_tokens
        if metrics.first_scheduled_time is None:
            metrics.first_scheduled_time = output.first_scheduled_time
        if metrics.first_token_time is None and output.new_token_ids:
            metrics.first_token_time = now
        if choice.finish_reason is not None:
            self._num_unfinished -= 1
            if self.finished:
                metrics.finished_time = now

    def end(self, reason: FinishReason, now: float) -> None:
        """End every choice that has not ended by itself."""
        for choice in self.choices:
            choice.end(reason)
        self._num_unfinished = 0
        if self.metrics.finished_time is None:
            self.metrics.finished_time = now

    def take_output(self) -> RequestOutput | PoolingRequestOutput | None:
        """What the user gets now, if anything.

        DELTA has the choices that moved since the last call, with what is new in them; CUMULATIVE has all choices with
        all they have; FINAL_ONLY brings nothing before every choice has ended.
        """
        if not self.has_output:
            return None
        if self._pooling:
            return self.choices[0].pooled_output()
        delta = self._kind is RequestOutputKind.DELTA
        choices = [choice for choice in self.choices if choice.moved] if delta else self.choices
        shown, self._prompt_logprobs = self._prompt_logprobs, None if delta else self._prompt_logprobs
        return RequestOutput(
            request_id=self.request_id,
            prompt=self._prompt,
            prompt_token_ids=self.prompt_token_ids,
            outputs=[choice.delta() if delta else choice.everything() for choice in choices],
            finished=self.finished,
            prompt_logprobs=shown,
            num_cached_tokens=self._num_cached_tokens,
            metrics=self.metrics,
        )


class _Choice:
    """One of a request's choices as it grows."""

    def __init__(self, request: OpenRequest, core_request: EngineCoreRequest, tokenizer: Tokenizer | None) -> None:
        params = core_request.sampling.params
        prompt = core_request.prompt_token_ids
        readable = tokenizer if params.detokenize else None
        self.request = request
        self.core_id = core_request.request_id
        self.finish_reason: str | None = None
        self.moved = False
        self._index = core_request.sampling.choice_index
        self._eos_token_ids = core_request.sampling.eos_token_ids
        self._text = None if readable is None else IncrementalDetokenizer(readable, prompt, params)
        self._logprob_texts = None if params.logprobs is None else LogprobTexts(readable, prompt)
        self._token_ids: list[int] = []
        self._logprobs: list[dict[int, Logprob]] = []
        self._cumulative_logprob = 0.0
        self._num_sent = 0
        self._stop_reason: int | str | None = None
        self._error: str | None = None
        self._is_refused = False
        self._pooled: bytes | None = None

    def take(self, output: EngineCoreOutput) -> bool:
        """Take what the core says. True if a stop string ended the choice, which the core does not know."""
        self.moved = True
        self._pooled = output.pooled
        stop = self._take_text(output)
        kept = output.new_token_ids if stop is None else output.new_token_ids[: self._num_kept()]
        self._token_ids.extend(kept)
        self._take_logprobs(output, len(kept))
        if stop is not None:
            self.finish_reason, self._stop_reason = str(FinishReason.STOP), stop
            return output.finish_reason is None
        if output.finish_reason is not None:
            self.finish_reason = str(output.finish_reason)
            self._stop_reason, self._error = output.stop_reason, output.error
            self._is_refused = output.is_refused
        return False

    def end(self, reason: FinishReason) -> None:
        """End the choice here, unless it has ended already."""
        if self.finish_reason is None:
            self.moved = True
            self.finish_reason = str(reason)

    def pooled_output(self) -> PoolingRequestOutput:
        """What the text was pooled to; no numbers where that failed or was given up."""
        return PoolingRequestOutput(
            request_id=self.request.request_id,
            outputs=PoolingOutput(data=[] if self._pooled is None else array("f", self._pooled).tolist()),
            prompt_token_ids=self.request.prompt_token_ids,
            num_cached_tokens=self.request.num_cached_tokens,
            error=self._error or (self.finish_reason if self._pooled is None else None),
        )

    def everything(self) -> CompletionOutput:
        """The choice so far; lists are copies unless it has ended, so that a reader may keep them."""
        finished = self.finish_reason is not None
        if self._text is not None:
            self._text.take_delta(finished)
        text = "" if self._text is None else self._text.visible_text
        if finished:
            return self._output(text, self._token_ids, self._logprobs)
        return self._output(text, list(self._token_ids), list(self._logprobs))

    def delta(self) -> CompletionOutput:
        """What is new since the last call."""
        self.moved = False
        new = slice(self._num_sent, None)
        self._num_sent = len(self._token_ids)
        text = "" if self._text is None else self._text.take_delta(self.finish_reason is not None)
        return self._output(text, self._token_ids[new], self._logprobs[new])

    def _output(self, text: str, token_ids: list[int], logprobs: list[dict[int, Logprob]]) -> CompletionOutput:
        has_logprobs = self._logprob_texts is not None
        return CompletionOutput(
            index=self._index,
            text=text,
            token_ids=token_ids,
            cumulative_logprob=self._cumulative_logprob if has_logprobs else None,
            logprobs=logprobs if has_logprobs else None,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            error=self._error,
            is_refused=self._is_refused,
        )

    def _take_text(self, output: EngineCoreOutput) -> str | None:
        if self._text is None:
            return None
        return self._text.append(output.new_token_ids, self._ends_with_a_token(output))

    def _ends_with_a_token(self, output: EngineCoreOutput) -> bool:
        """Whether the newest token is the one that ended the choice: a grammar that is complete ends it after text."""
        if output.finish_reason is not FinishReason.STOP or not output.new_token_ids:
            return False
        return output.stop_reason is not None or output.new_token_ids[-1] in self._eos_token_ids

    def _num_kept(self) -> int:
        """Tokens of the newest output up to the one that completed the stop string."""
        return 0 if self._text is None else self._text.num_kept_tokens - len(self._token_ids)

    def _take_logprobs(self, output: EngineCoreOutput, num_kept: int) -> None:
        if self._logprob_texts is None or output.new_logprobs is None:
            return
        for row in output.new_logprobs[:num_kept]:
            self._logprobs.append(self._logprob_texts.take(row))
            self._cumulative_logprob += row.logprobs[0]
