"""One span per request, for whoever collects traces; nothing unless asked for."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Protocol

from octavo.config.engine_config import EngineConfig
from octavo.util.lazy import resolve
from octavo.words.errors import ConfigError
from octavo.words.outputs import PoolingRequestOutput, RequestMetrics, RequestOutput

if TYPE_CHECKING:
    from octavo.frontend.input_processor import PreparedRequest

OTLP_TRACER = "octavo.frontend.otlp:otlp_tracer"

trace_headers: ContextVar[Mapping[str, str]] = ContextVar("trace_headers", default={})  # noqa: B039 (nobody writes to it)
"""Headers of the request that is being answered, which may name the span that ours belongs under."""


class RequestSpan(Protocol):
    """The span of one request."""

    def take(self, output: RequestOutput | PoolingRequestOutput) -> None:
        """The request has got this output, which brings new tokens or is the only one."""

    def end(self, metrics: RequestMetrics, error: BaseException | None) -> None:
        """The request is over; ``error`` is why it was cut."""


class RequestTracer(Protocol):
    """Begins spans."""

    def begin(self, prepared: PreparedRequest) -> RequestSpan:
        """A request begins, under the span that ``trace_headers`` name."""

    def shutdown(self) -> None:
        """Send what was not sent yet, in a bounded time."""


class NoSpan:
    """Nothing is told of a request."""

    def take(self, output: RequestOutput | PoolingRequestOutput) -> None:
        pass

    def end(self, metrics: RequestMetrics, error: BaseException | None) -> None:
        pass


class NoTracer:
    """Nobody asked."""

    _span = NoSpan()

    def begin(self, prepared: PreparedRequest) -> RequestSpan:
        return self._span

    def shutdown(self) -> None:
        pass


def make_tracer(config: EngineConfig) -> RequestTracer:
    """The tracer that was asked for. Raises ConfigError where its packages are not installed."""
    endpoint = config.observability.otlp_traces_endpoint
    if endpoint is None:
        return NoTracer()
    try:
        tracer: RequestTracer = resolve(OTLP_TRACER)(endpoint)
    except ImportError as error:
        raise ConfigError("otlp_traces_endpoint needs more packages: pip install octavo[otlp].") from error
    return tracer
