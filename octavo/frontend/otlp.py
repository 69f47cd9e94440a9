"""Spans over OTLP (HTTP with protobuf) by the OpenTelemetry SDK, with the attributes that it has for generative AI."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from octavo import __version__
from octavo.frontend.input_processor import PreparedRequest
from octavo.frontend.tracing import trace_headers
from octavo.words.outputs import PoolingRequestOutput, RequestMetrics, RequestOutput

FLUSH_TIMEOUT_MS = 1000
NANOSECONDS = 1_000_000_000


def otlp_tracer(endpoint: str) -> OtlpTracer:
    """A tracer that sends to ``endpoint``, such as http://127.0.0.1:4318/v1/traces."""
    return OtlpTracer(OTLPSpanExporter(endpoint, timeout=FLUSH_TIMEOUT_MS / 1000))


class OtlpTracer:
    """Gives spans to ``exporter`` in batches, on a thread of its own."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._batches = BatchSpanProcessor(exporter)
        provider = TracerProvider(resource=Resource.create({"service.name": "octavo"}), shutdown_on_exit=False)
        provider.add_span_processor(self._batches)
        self._tracer = provider.get_tracer("octavo", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, prepared: PreparedRequest) -> OtlpSpan:
        first = prepared.choices[0]
        span = self._tracer.start_span(
            "llm_request",
            context=self._propagator.extract(trace_headers.get()),
            kind=SpanKind.SERVER,
            attributes=_of_request(prepared),
            start_time=_nanoseconds(first.arrival_time),
        )
        return OtlpSpan(span)

    def shutdown(self) -> None:
        self._batches.force_flush(FLUSH_TIMEOUT_MS)
        self._exporter.shutdown()


class OtlpSpan:
    """Counts tokens while its request runs."""

    def __init__(self, span: Span) -> None:
        self._span = span
        self._num_tokens = 0
        self._num_prompt_tokens = 0
        self._reasons: dict[int, str] = {}

    def take(self, output: RequestOutput | PoolingRequestOutput) -> None:
        self._num_prompt_tokens = len(output.prompt_token_ids)
        if isinstance(output, RequestOutput):
            for choice in output.outputs:
                self._num_tokens += len(choice.token_ids)
                if choice.finish_reason is not None:
                    self._reasons[choice.index] = choice.finish_reason

    def end(self, metrics: RequestMetrics, error: BaseException | None) -> None:
        span = self._span
        span.set_attribute("gen_ai.usage.input_tokens", self._num_prompt_tokens)
        span.set_attribute("gen_ai.usage.output_tokens", self._num_tokens)
        if self._reasons:
            span.set_attribute(
                "gen_ai.response.finish_reasons", [reason for _, reason in sorted(self._reasons.items())]
            )
        for name, moment in (
            ("time_in_queue", metrics.first_scheduled_time),
            ("time_to_first_token", metrics.first_token_time),
            ("e2e", metrics.finished_time),
        ):
            if moment is not None:
                span.set_attribute(f"gen_ai.latency.{name}", moment - metrics.arrival_time)
        if error is not None and not isinstance(error, GeneratorExit | asyncio.CancelledError):
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.set_attribute("error.type", type(error).__name__)
        span.end(_nanoseconds(metrics.finished_time or time.time()))


def _of_request(prepared: PreparedRequest) -> dict[str, Any]:
    sampling = prepared.choices[0].sampling
    attributes: dict[str, Any] = {"gen_ai.provider.name": "octavo", "gen_ai.request.id": prepared.request_id}
    if sampling.pooling is not None:
        return {**attributes, "gen_ai.operation.name": "embeddings"}
    params = sampling.params
    return {
        **attributes,
        "gen_ai.operation.name": "text_completion",
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.choice.count": len(prepared.choices),
    }


def _nanoseconds(seconds: float) -> int:
    return int(seconds * NANOSECONDS)
