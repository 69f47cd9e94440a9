"""LLMEngine: the public core loop. Add requests, step, take outputs.

with LLMEngine.from_engine_args(EngineArgs("smollm2-135m")) as engine:
    engine.add_request("0", "The capital of France is", SamplingParams(max_tokens=8))
    while engine.has_unfinished_requests():
        for output in engine.step():
            ...
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from octavo.checkpoint.generation_config import GenerationConfig, read_generation_config
from octavo.checkpoint.resolve import Checkpoint, resolve_model
from octavo.config.engine_config import EngineConfig
from octavo.config.flat import EngineArgs
from octavo.engine.build import find_checkpoint
from octavo.engine.client import EngineCoreClient, make_client
from octavo.engine.info import EngineInfo
from octavo.engine.stats import LOG_INTERVAL_S, IterationStats, LoggingStatLogger, Metric, MetricsRecorder, StatLogger
from octavo.frontend.input_processor import InputProcessor, prompt_text
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.frontend.output_processor import OutputProcessor
from octavo.tokenizer.tokenizer import Tokenizer
from octavo.util.collector import paused_collector
from octavo.util.spans import NO_SPANS, Span, SpanRecorder, Spans
from octavo.words.errors import ConfigError, RequestError
from octavo.words.inputs import PromptType
from octavo.words.messages import EngineCoreOutputs, EngineCoreRequest
from octavo.words.outputs import RequestOutput
from octavo.words.sampling_params import SamplingParams


@dataclass(frozen=True)
class PreparedRequest:
    """A user's request that was checked and can be added: one core request per choice."""

    request_id: str
    prompt: str | None
    choices: list[EngineCoreRequest]


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
        self._max_request_len = client.info.max_tokens_that_fit
        self._metrics = MetricsRecorder()
        self._stat_loggers: tuple[StatLogger, ...] = (self._metrics, *stat_loggers)
        self._next_log_time = time.monotonic() + LOG_INTERVAL_S
        self._spans: Spans = NO_SPANS

    @classmethod
    def from_engine_args(
        cls, args: EngineArgs, *, multiprocess: bool = False, stat_loggers: Sequence[StatLogger] = ()
    ) -> Self:
        """Start an engine from options. The tokenizer is loaded while the core starts."""
        config = args.create_engine_config()
        with paused_collector():
            return cls._start(config, multiprocess, stat_loggers)

    @classmethod
    def _start(cls, config: EngineConfig, multiprocess: bool, stat_loggers: Sequence[StatLogger]) -> Self:
        checkpoint = find_checkpoint(config)
        generation_config = GenerationConfig() if checkpoint is None else read_generation_config(checkpoint)
        with ThreadPoolExecutor(1, thread_name_prefix="octavo-tokenizer") as pool:
            loading = pool.submit(_load_tokenizer, config, checkpoint)
            client = make_client(config, multiprocess=multiprocess)
        try:
            return cls._assemble(config, client, loading.result(), generation_config, stat_loggers)
        except BaseException:
            client.shutdown()
            raise

    @classmethod
    def _assemble(
        cls,
        config: EngineConfig,
        client: EngineCoreClient,
        tokenizer: Tokenizer,
        generation_config: GenerationConfig,
        stat_loggers: Sequence[StatLogger],
    ) -> Self:
        info = client.info
        inputs = InputProcessor(tokenizer, info.facts, generation_config, config, info.max_model_len)
        own = () if config.observability.disable_log_stats else (LoggingStatLogger(device=info.plan.device),)
        return cls(
            client,
            tokenizer,
            inputs,
            OutputProcessor(tokenizer),
            stat_loggers=(*own, *stat_loggers),
        )

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
    ) -> PreparedRequest:
        """Check a request and turn it into tokens; nothing runs yet. RequestError for one that cannot be served."""
        choices = self._inputs.process(prompt, params, request_id, priority=priority or 0, arrival_time=arrival_time)
        self._check_fits(choices[0])
        return PreparedRequest(request_id, prompt_text(prompt), choices)

    def add_prepared(self, request: PreparedRequest) -> None:
        """Hand a prepared request to the core."""
        self._outputs.add_request(request.request_id, request.prompt, request.choices)
        for choice in request.choices:
            self._client.add_request(choice)

    def add_request(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None = None,
        *,
        priority: int | None = None,
        arrival_time: float | None = None,
    ) -> None:
        """Check a request and queue it. ``priority`` None is that of the prompt, or 0; lower runs first."""
        self.add_prepared(self.prepare(request_id, prompt, params, priority=priority, arrival_time=arrival_time))

    def step(self) -> list[RequestOutput]:
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
        self._record(outputs)
        return processed.request_outputs

    def abort_request(self, request_ids: str | Sequence[str]) -> None:
        """End requests, all choices of each; unknown ones are ignored. They bring no more outputs."""
        listed = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        core_ids = self._outputs.abort_requests(listed)
        if core_ids:
            self._metrics.count_finished("abort", len(core_ids))
            self._client.abort_requests(core_ids)

    def has_unfinished_requests(self) -> bool:
        """Whether any request still waits for outputs."""
        return self._outputs.has_unfinished_requests()

    def get_metrics(self) -> list[Metric]:
        """Counters and gauges of this moment, under vLLM's names."""
        return self._metrics.snapshot(self._client.call("stats"))

    def do_log_stats(self) -> None:
        """Let every stat logger speak now."""
        self._next_log_time = time.monotonic() + LOG_INTERVAL_S
        for stat_logger in self._stat_loggers:
            stat_logger.log()

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and nothing is done, while a request holds blocks."""
        return bool(self._client.call("reset_prefix_cache"))

    def start_profile(self) -> None:
        """Take note from now on of what is done when, in every part of the engine."""
        self._spans = SpanRecorder("front end")
        self._client.call("start_profile")

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

    def _check_fits(self, request: EngineCoreRequest) -> None:
        """Refuse here what the core would refuse: the number of blocks was forced below the longest length."""
        num_tokens, room = len(request.prompt_token_ids), self._max_request_len
        if num_tokens >= room:
            raise RequestError(
                f"the prompt has {num_tokens} tokens, and the whole KV cache holds {room} with its answer; shorten it "
                "or enlarge the cache (kv_cache_memory_bytes, num_gpu_blocks_override).",
                param="prompt",
            )

    def _record(self, outputs: EngineCoreOutputs) -> None:
        if outputs.stats is None:
            return
        iteration = IterationStats.of(outputs.outputs)
        for stat_logger in self._stat_loggers:
            stat_logger.record(outputs.stats, iteration)
        if time.monotonic() >= self._next_log_time:
            self.do_log_stats()


def _load_tokenizer(config: EngineConfig, model: Checkpoint | None) -> Tokenizer:
    checkpoint = resolve_model(config.model.tokenizer) if config.model.tokenizer else model
    if checkpoint is None:
        raise ConfigError(f"model {config.model.model!r} has no tokenizer; name another model's with tokenizer=...")
    return load_tokenizer(checkpoint, chat_template=config.model.chat_template)
