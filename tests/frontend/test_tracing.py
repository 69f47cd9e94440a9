"""Spans of requests, as a collector on this machine gets them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from octavo.config.flat import EngineArgs, config_from_kwargs
from octavo.frontend.async_llm import AsyncLLM
from octavo.frontend.tracing import NoTracer, make_tracer, trace_headers
from octavo.words.errors import ConfigError, RequestTimeoutError
from octavo.words.sampling_params import RequestOutputKind, SamplingParams

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
LONG = SamplingParams(max_tokens=900, ignore_eos=True, temperature=0.0, output_kind=RequestOutputKind.DELTA)


class Collector(BaseHTTPRequestHandler):
    spans: list[Any] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            import gzip

            body = gzip.decompress(body)
        found = ExportTraceServiceRequest.FromString(body)
        self.spans.extend(span for one in found.resource_spans for each in one.scope_spans for span in each.spans)
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1/traces"
        server.shutdown()
        thread.join(10)


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for each in span.attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        found[each.key] = [item.string_value for item in value.values] if kind == "array_value" else value
    return found


async def three_requests(llm: AsyncLLM) -> None:
    trace_headers.set({"traceparent": f"00-{TRACE}-{PARENT}-01"})
    params = SamplingParams(max_tokens=5, temperature=0.5, n=2, output_kind=RequestOutputKind.DELTA)
    async for _ in llm.generate("ABC", params, "first"):
        pass
    trace_headers.set({})
    with pytest.raises(RequestTimeoutError):
        async for _ in llm.generate("ABC", LONG, "late", timeout_s=0.01):
            pass
    outputs = llm.generate("ABC", LONG, "left")
    await anext(outputs)
    await outputs.aclose()


def test_every_request_has_a_span_under_that_of_its_client(collector: str, succ: Path) -> None:
    room: dict[str, Any] = {"max_model_len": 1024, "kv_cache_memory_bytes": "16MiB", "disable_log_stats": True}
    llm = AsyncLLM.from_engine_args(EngineArgs(str(succ), otlp_traces_endpoint=collector, **room))
    try:
        asyncio.run(asyncio.wait_for(three_requests(llm), 30))
    finally:
        llm.shutdown()
    spans = {attributes(span)["gen_ai.request.id"]: span for span in Collector.spans}
    first = attributes(spans["first"])
    assert (spans["first"].trace_id.hex(), spans["first"].parent_span_id.hex()) == (TRACE, PARENT)
    assert (first["gen_ai.usage.input_tokens"], first["gen_ai.usage.output_tokens"]) == (3, 10)
    assert first["gen_ai.response.finish_reasons"] == ["length", "length"]
    assert (first["gen_ai.request.temperature"], first["gen_ai.request.choice.count"]) == (0.5, 2)
    assert 0 <= first["gen_ai.latency.time_to_first_token"] <= first["gen_ai.latency.e2e"]
    assert spans["first"].end_time_unix_nano > spans["first"].start_time_unix_nano
    assert attributes(spans["late"])["error.type"] == "RequestTimeoutError" and spans["late"].status.code == 2
    assert spans["left"].status.code == 0 and not spans["left"].parent_span_id
    assert len(Collector.spans) == 3


def test_nobody_asks_for_spans_and_none_are_made() -> None:
    assert isinstance(make_tracer(config_from_kwargs(model="m")), NoTracer)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "octavo.frontend.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(ConfigError, match=r"octavo\[otlp\]"):
        make_tracer(config_from_kwargs(model="m", otlp_traces_endpoint="http://127.0.0.1:1/v1/traces"))
