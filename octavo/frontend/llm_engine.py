"""LLMEngine: the public core loop. Add requests, step, take outputs.

with LLMEngine.from_engine_args(EngineArgs("smollm2-135m")) as engine:
    engine.add_request("0", "The capital of France is", SamplingParams(max_tokens=8))
    while engine.has_unfinished_requests():
        for output in engine.step():
            ...
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Self

from octavo.config.flat import EngineArgs
from octavo.engine.client import EngineCoreClient, make_client
from octavo.engine.info import EngineInfo
from octavo.engine.metric import Metric
from octavo.engine.request_stats import RequestStats
from octavo.engine.stats import Statistics, StatLogger, cache_metrics
from octavo.frontend.input_processor import InputProcessor, PreparedRequest
from octavo.frontend.output_processor import OutputProcessor
from octavo.frontend.start import default_stat_loggers, start_front_end
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.util.spans import NO_SPANS, Span, SpanRecorder, Spans
from octavo.words.errors import ConfigError
from octavo.words.inputs import PromptType
from octavo.words.lora import LoRARequest
from octavo.words.messages import FinishReason
from octavo.words.outputs import PoolingRequestOutput, RequestOutput
from octavo.words.pooling_params import PoolingParams
from octavo.words.sampling_params import SamplingParams


class LLMEngine:
    """An engine core with a front end, driven by ``step``. One caller at a time.

    The parts are handed in and are then its own; ``from_engine_args`` makes them from options.
    """

    def __init__(
        self,
        client: EngineCoreClient,
        tokenizer: Tokenizer,
        input_processor: InputProcessor,
        output_processor: OutputProcessor,
        *,
        stat_loggers: Sequence[StatLogger] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self._client = client
        self._inputs = input_processor
        self._outputs = output_processor
        self._statistics = Statistics(
            RequestStats(client.info.max_model_len, max_loras=client.info.plan.max_loras), stat_loggers
        )
        self._spans: Spans = NO_SPANS

    @classmethod
    def from_engine_args(
        cls, args: EngineArgs, *, multiprocess: bool = False, stat_loggers: Sequence[StatLogger] = ()
    ) -> Self:
        """Start an engine from options. The tokenizer is loaded while the core starts."""
        config = args.create_engine_config()
        parts = start_front_end(config, partial(make_client, multiprocess=multiprocess))
        return cls(*parts, stat_loggers=(*default_stat_loggers(config, parts.client.info), *stat_loggers))

    @property
    def info(self) -> EngineInfo:
        """What was decided and learnt at start-up."""
        return self._client.info

    @property
    def default_sampling_params(self) -> SamplingParams:
        """What a request without parameters gets: a copy, yours to change."""
        return self._inputs.default_sampling_params()

    def prepare(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None = None,
        *,
        priority: int | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
    ) -> PreparedRequest:
        """Check a request and turn it into tokens; nothing runs yet. RequestError for one that cannot be served."""
        return self._inputs.prepare(
            request_id, prompt, params, priority=priority, arrival_time=arrival_time, lora_request=lora_request
        )

    def prepare_pooling(
        self, request_id: str, prompt: PromptType | tuple[str, str], params: PoolingParams
    ) -> PreparedRequest:
        """As ``prepare``, for numbers instead of text; a tuple of two texts is a pair."""
        return self._inputs.prepare_pooling(request_id, prompt, params)

    def add_prepared(self, request: PreparedRequest) -> None:
        """Hand a prepared request to the core."""
        self._outputs.add_request(request.request_id, request.prompt, request.choices)
        self._statistics.begin(request.choices)
        for choice in request.for_core:
            self._client.add_request(choice)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None = None,
        *,
        priority: int | None = None,
        arrival_time: float | None = None,
        lora_request: LoRARequest | None = None,
    ) -> None:
        """Check a request and queue it. ``priority`` None is that of the prompt, or 0; lower runs first."""
        prepared = self.prepare(
            request_id, prompt, params, priority=priority, arrival_time=arrival_time, lora_request=lora_request
        )
        self.add_prepared(prepared)

    def step(self) -> list[RequestOutput | PoolingRequestOutput]:
        """Wait for the next outputs of the core and return what they mean to users; may be empty.

        With no request to wait for there is nothing to do. Raises EngineDeadError when the core has failed.
        """
        if not self.has_unfinished_requests():
            return []
        outputs = self._client.get_output()
        if outputs is None:
            return []
        with self._spans.span("output"):
            processed = self._outputs.process_outputs(outputs)
        if processed.to_abort:  # a stop string was found, which the core knows nothing of
            self._client.abort_requests(processed.to_abort)
        self._statistics.record(outputs, processed.to_abort)
        return processed.request_outputs

    def abort_request(self, request_ids: str | Sequence[str]) -> None:
        """End requests, all choices of each; unknown ones are ignored. They bring no more outputs."""
        listed = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        core_ids = self._outputs.abort_requests(listed)
        if core_ids:
            self._statistics.end(core_ids, FinishReason.ABORT)
            self._client.abort_requests(core_ids)

    def has_unfinished_requests(self) -> bool:
        """Whether any request still waits for outputs."""
        return self._outputs.has_unfinished_requests()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges of this moment, under vLLM's names."""
        more = [*cache_metrics(self.info), *self._client.metrics()]
        return self._statistics.snapshot(self._client.call("stats"), more)

    def do_log_stats(self) -> None:
        """Let every stat logger speak now."""
        self._statistics.log()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing is done, while a request holds blocks."""
        return bool(self._client.call("reset_prefix_cache"))

    def start_profile(self, *, with_ops: bool = False) -> None:
        """Take note from now on of what is done when, in every part of the engine; ``with_ops`` of every op too."""
        self._spans = SpanRecorder("front end")
        self._client.call("start_profile", with_ops)

    def stop_profile(self) -> list[Span]:
        """What was done since ``start_profile``, and no more notes."""
        spans, self._spans = self._spans.take(), NO_SPANS
        return spans + self._client.call("stop_profile")

    def collective_rpc(self, name: str, *args: Any) -> list[Any]:
        """Call a method of every worker by name; one result per worker. Raises EngineError if it fails."""
        if not isinstance(name, str):
            raise ConfigError(
                f"collective_rpc takes the name of a method, got {type(name).__name__}; code is never sent."
            )
        results: list[Any] = self._client.call("collective_rpc", name, *args)
        return results

    def check_health(self) -> None:
        """Return if the core and its workers are well. Raises EngineDeadError or EngineError."""
        self._client.check_health()

    def shutdown(self) -> None:
        """Stop the core and free everything; harmless when called again."""
        self._client.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.shutdown()
