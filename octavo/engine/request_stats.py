"""How long requests take and how large they are, as the front end sees it, in vLLM's histograms and counters.

    arrival ...... first scheduled ...... first token ...... last token
       `---queue time---'`--prefill time---'`--decode time--'
       `---------time to first token-------'
                       `-----------inference time-----------'
       `-------------------end to end-----------------------'

Everything is counted by choice, but for the prompt, which the choices of a request share. A pause for another core to
start is part of the time it falls in.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Callable, Iterable, Sequence

from octavo.engine.metric import Counter, Gauge, Histogram, Metric
from octavo.words.messages import EngineCoreOutput, EngineCoreRequest

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
ITERATION_TOKENS = tuple(float(2**power) for power in (0, *range(3, 15)))
CHOICES = (1.0, 2.0, 5.0, 10.0, 20.0)
PREEMPTIONS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)


def one_two_five(at_most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to ``at_most``."""
    bounds = (factor * 10**power for power in range(12) for factor in (1, 2, 5))
    return tuple(float(bound) for bound in bounds if bound <= at_most)


class Distribution:
    """Counts values by bucket: bucket i holds those above bound i - 1 and up to bound i."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class RequestStats:
    """Follows every choice from its arrival to its end. ``max_model_len`` bounds the buckets of token counts.

    Not thread-safe; driven by whoever takes the outputs. ``clock`` is that of arrival times.
    """

    def __init__(self, max_model_len: int, *, max_loras: int = 0, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._max_loras = max_loras
        self._open: dict[str, _Choice] = {}
        self._finished: Tally[str] = Tally()
        self._prompt_tokens = self._cached_tokens = self._generation_tokens = 0
        tokens = one_two_five(max_model_len)
        self._by_name = {
            "time_to_first_token_seconds": Distribution(FIRST_TOKEN_S),
            "inter_token_latency_seconds": Distribution(TOKEN_S),
            "request_time_per_output_token_seconds": Distribution(TOKEN_S),
            "e2e_request_latency_seconds": Distribution(REQUEST_S),
            "request_queue_time_seconds": Distribution(REQUEST_S),
            "request_prefill_time_seconds": Distribution(REQUEST_S),
            "request_decode_time_seconds": Distribution(REQUEST_S),
            "request_inference_time_seconds": Distribution(REQUEST_S),
            "request_prompt_tokens": Distribution(tokens),
            "request_generation_tokens": Distribution(tokens),
            "request_max_num_generation_tokens": Distribution(tokens),
            "request_prefill_kv_computed_tokens": Distribution(tokens),
            "request_params_max_tokens": Distribution(tokens),
            "request_params_n": Distribution(CHOICES),
            "request_num_preemptions": Distribution(PREEMPTIONS),
            "iteration_tokens_total": Distribution(ITERATION_TOKENS),
        }
        self._token_latency = self._by_name["inter_token_latency_seconds"]

    @property
    def num_open(self) -> int:
        """Choices that have not ended."""
        return len(self._open)

    def begin(self, request: EngineCoreRequest) -> None:
        """A choice was handed to the core."""
        self._open[request.request_id] = _Choice(request)

    def record(self, outputs: Iterable[EngineCoreOutput]) -> None:
        """Take note of what a step brought."""
        now = self._clock()
        num_tokens = 0
        for output in outputs:
            choice = self._open.get(output.request_id)
            if choice is None:
                continue
            if output.new_token_ids:
                num_tokens += self._note_tokens(choice, output, now)
            if output.finish_reason is not None:
                choice.num_preemptions = output.num_preemptions
                self._end(output.request_id, str(output.finish_reason), now)
        if num_tokens:
            self._add("iteration_tokens_total", num_tokens)

    def end(self, request_ids: Iterable[str], reason: str) -> None:
        """Choices ended here, not in the core: aborted, or by a stop string. Those that have ended are ignored."""
        now = self._clock()
        for request_id in request_ids:
            if request_id in self._open:
                self._end(request_id, reason, now)

    def metrics(self) -> list[Metric]:
        """All totals and histograms so far."""
        return [
            Counter("vllm:prompt_tokens", self._prompt_tokens),
            Counter("vllm:prompt_tokens_cached", self._cached_tokens),
            Counter("vllm:generation_tokens", self._generation_tokens),
            *(
                Counter("vllm:request_success", number, {"finished_reason": reason})
                for reason, number in sorted(self._finished.items())
            ),
            *(
                Histogram(f"vllm:{name}", each.bounds, tuple(each.counts), each.sum)
                for name, each in self._by_name.items()
            ),
            *self._adapter_metrics(),
        ]

    def _adapter_metrics(self) -> list[Metric]:
        """Adapters of choices that got a token, and of those that wait for one; routers read them from the labels."""
        if not self._max_loras:
            return []
        running, waiting = (
            ",".join(sorted({each.adapter for each in self._open.values() if each.adapter and runs(each)}))
            for runs in (_is_running, _is_waiting)
        )
        labels = {
            "max_lora": str(self._max_loras),
            "running_lora_adapters": running,
            "waiting_lora_adapters": waiting,
        }
        return [Gauge("vllm:lora_requests_info", self._clock(), labels)]

    def _add(self, name: str, value: float) -> None:
        self._by_name[name].add(value)

    def _note_tokens(self, choice: _Choice, output: EngineCoreOutput, now: float) -> int:
        """Count the tokens of an output; returns how many, those of the prompt included with the first."""
        num_new = len(output.new_token_ids)
        self._generation_tokens += num_new
        choice.num_tokens += num_new
        if choice.last_token_at is not None:
            self._token_latency.add(now - choice.last_token_at)
            choice.last_token_at = now
            return num_new
        choice.last_token_at = choice.first_token_at = now
        choice.scheduled_at = output.first_scheduled_time
        choice.num_cached_tokens = output.num_cached_tokens
        self._add("time_to_first_token_seconds", now - choice.arrived_at)
        return num_new + self._note_prompt(choice)

    def _note_prompt(self, choice: _Choice) -> int:
        if not choice.is_first:
            return 0
        self._prompt_tokens += choice.num_prompt_tokens
        self._cached_tokens += choice.num_cached_tokens
        return choice.num_prompt_tokens

    def _end(self, request_id: str, reason: str, now: float) -> None:
        choice = self._open.pop(request_id)
        self._finished[reason] += 1
        self._add("e2e_request_latency_seconds", now - choice.arrived_at)
        self._add("request_prompt_tokens", choice.num_prompt_tokens)
        self._add("request_generation_tokens", choice.num_tokens)
        self._add("request_max_num_generation_tokens", choice.num_tokens)
        self._add("request_params_max_tokens", choice.max_tokens)
        self._add("request_params_n", choice.n)
        self._add("request_num_preemptions", choice.num_preemptions)
        self._add_times(choice)

    def _add_times(self, choice: _Choice) -> None:
        """Times of a choice that got a token."""
        scheduled, first, last = choice.scheduled_at, choice.first_token_at, choice.last_token_at
        if scheduled is None or first is None or last is None:
            return
        self._add("request_queue_time_seconds", max(scheduled - choice.arrived_at, 0.0))
        self._add("request_prefill_time_seconds", first - scheduled)
        self._add("request_decode_time_seconds", last - first)
        self._add("request_inference_time_seconds", last - scheduled)
        self._add("request_prefill_kv_computed_tokens", choice.num_prompt_tokens - choice.num_cached_tokens)
        if choice.num_tokens > 1:
            self._add("request_time_per_output_token_seconds", (last - first) / (choice.num_tokens - 1))


def _is_running(choice: _Choice) -> bool:
    return choice.first_token_at is not None


def _is_waiting(choice: _Choice) -> bool:
    return choice.first_token_at is None


class _Choice:
    """What is known of one choice."""

    __slots__ = (
        "adapter",
        "arrived_at",
        "first_token_at",
        "is_first",
        "last_token_at",
        "max_tokens",
        "n",
        "num_cached_tokens",
        "num_preemptions",
        "num_prompt_tokens",
        "num_tokens",
        "scheduled_at",
    )

    def __init__(self, request: EngineCoreRequest) -> None:
        self.adapter = "" if request.adapter is None else request.adapter.name
        self.arrived_at = request.arrival_time
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.is_first = request.sampling.choice_index == 0
        self.max_tokens = request.sampling.max_tokens
        self.n = request.sampling.params.n
        self.num_tokens = 0
        self.num_cached_tokens = 0
        self.num_preemptions = 0
        self.scheduled_at: float | None = None
        self.first_token_at: float | None = None
        self.last_token_at: float | None = None
