"""Keys, hosts, request ids and phases, on an application whose engine is not there (yet)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from octavo.config.server import ServerConfig
from octavo.server.app import build_app, build_gate
from octavo.server.body import BodyReader
from octavo.server.context import ServerContext
from octavo.server.engine_state import EngineState
from octavo.server.key_check import OPEN_PATHS, OPEN_PREFIXES

KEYS = ["secret", "other"]


def make_context(**options: Any) -> ServerContext:
    config = ServerConfig(disable_access_log=True, **options)
    return ServerContext(state=EngineState(), config=config, model_names=("m",), bodies=BodyReader(10_000))


def ask(context: ServerContext, method: str, path: str, *, keys: list[str] | None = None, **options: Any) -> Any:
    """One request to the application behind its gate, without a network."""
    app = build_gate(build_app(context), context, KEYS if keys is None else keys)

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, raise_app_exceptions=True)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
            return await client.request(method, path, **options)

    return asyncio.run(send())


def routes_of(app: Starlette) -> list[tuple[str, str]]:
    return [
        (method, route.path)
        for route in app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method not in ("HEAD", "OPTIONS")
    ]


def test_every_route_but_the_open_ones_needs_a_key() -> None:  # SE06
    context = make_context(dev_mode=True)
    routes = routes_of(build_app(context))
    assert {"/v1/chat/completions", "/tokenize", "/collective_rpc", "/docs", "/openapi.json"} <= {
        path for _, path in routes
    }
    for method, path in routes:
        answer = ask(context, method, path.replace("{model:path}", "m").replace("{response_id}", "r"))
        is_open = path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)
        assert (answer.status_code == 401) == (not is_open), path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Authorization": "Bearer secret"}, 200),
        ({"Authorization": "bearer other"}, 200),
        ({"x-api-key": "secret"}, 200),
        ({"Authorization": "Bearer secre"}, 401),
        ({"Authorization": "secret"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "sécret".encode("latin-1")}, 401),
        ({}, 401),
    ],
)
def test_a_key_is_sent_in_one_of_two_ways(headers: dict[str, Any], status: int) -> None:
    answer = ask(make_context(), "GET", "/version", headers=headers)
    assert answer.status_code == status
    if status == 401:
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"


def test_development_routes_are_absent_unless_asked_for() -> None:  # SE07
    for path in ("/reset_prefix_cache", "/collective_rpc", "/pause", "/resume"):
        assert ask(make_context(), "POST", path, keys=[]).status_code == 404


def test_while_the_model_loads_probes_tell_and_requests_are_told_to_wait() -> None:
    context = make_context()
    assert ask(context, "GET", "/live").json() == {"status": "loading"}
    health = ask(context, "GET", "/health")
    assert (health.status_code, health.json()) == (503, {"status": "loading"})
    for method, path, body in (
        ("POST", "/v1/completions", {"prompt": "a"}),
        ("POST", "/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": "a"}]}),
        ("GET", "/v1/models", None),
        ("GET", "/metrics", None),
    ):
        answer = ask(context, method, path, json=body, keys=[])
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text


def test_who_has_no_future_is_not_alive() -> None:
    context = make_context()
    context.state.set_ready(SimpleNamespace(errored=True, problem="gone"))  # type: ignore[arg-type]
    for path in ("/live", "/health"):
        answer = ask(context, "GET", path)
        assert (answer.status_code, answer.json()) == (503, {"status": "dead"})
    assert ask(context, "GET", "/v1/models", keys=[]).status_code == 503


def test_a_stopping_server_takes_no_more_requests() -> None:
    context = make_context()
    context.state.set_stopping()
    assert ask(context, "GET", "/health").json() == {"status": "stopping"}
    assert "stopping" in ask(context, "GET", "/v1/models", keys=[]).json()["error"]["message"]


def test_a_request_id_is_echoed_or_made() -> None:
    assert ask(make_context(), "GET", "/health", headers={"X-Request-Id": "mine"}).headers["x-request-id"] == "mine"
    made = [ask(make_context(), "GET", "/nope", headers=headers).headers["x-request-id"] for headers in ({}, {})]
    assert len(set(made)) == 2
    long = ask(make_context(), "GET", "/health", headers={"X-Request-Id": "a" * 129})
    assert len(long.headers["x-request-id"]) == 32


def test_only_named_hosts_are_served() -> None:  # SE13
    context = make_context(allowed_hosts="localhost, [::1]")
    assert ask(context, "GET", "/live").status_code == 200
    assert ask(context, "GET", "/live", headers={"Host": "[::1]:8000"}).status_code == 200
    assert ask(context, "GET", "/live", headers={"Host": "evil.example"}).status_code == 403


def test_browsers_of_other_origins_are_let_in_only_if_named() -> None:  # SE13
    asked = {"Origin": "http://page", "Access-Control-Request-Method": "POST"}
    refused = ask(make_context(), "OPTIONS", "/v1/completions", headers=asked)
    assert "access-control-allow-origin" not in refused.headers
    allowed = ask(make_context(allowed_origins="http://page"), "OPTIONS", "/v1/completions", headers=asked)
    assert allowed.headers["access-control-allow-origin"] == "http://page"
    assert "access-control-allow-credentials" not in allowed.headers


def test_a_script_of_a_named_origin_can_read_why_it_was_refused() -> None:
    context = make_context(allowed_origins="http://page")
    for key, status in (("wrong", 401), ("secret", 503)):
        headers = {"Origin": "http://page", "x-api-key": key}
        answer = ask(context, "POST", "/v1/completions", headers=headers, json={"prompt": "a"})
        assert answer.status_code == status
        assert answer.headers["access-control-allow-origin"] == "http://page"
        assert "x-request-id" in answer.headers["access-control-expose-headers"]


def test_errors_in_anthropics_routes_have_their_shape() -> None:
    answer = ask(make_context(), "POST", "/v1/messages")
    assert answer.json()["type"] == "error" and answer.json()["error"]["type"] == "authentication_error"


def test_what_nobody_expected_is_an_internal_error_without_details() -> None:
    context = make_context()
    app = build_app(context)

    async def broken(request: Request) -> None:
        raise RuntimeError("the secret plan is at 0x7fdeadbeef")

    app.add_route("/broken", broken)
    transport = httpx.ASGITransport(build_gate(app, context, []), raise_app_exceptions=True)

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get("/broken")

    answer = asyncio.run(send())
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "internal error; the server's log says more."


def test_a_path_cannot_write_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    context = ServerContext(state=EngineState(), config=ServerConfig(), model_names=("m",), bodies=BodyReader(10_000))
    with caplog.at_level("INFO", "octavo.server.access"):
        assert ask(context, "GET", "/x%0aERROR%20all%20is%20lost%1b[2J", keys=[]).status_code == 404
    assert [record.getMessage() for record in caplog.records] == [
        '127.0.0.1:123 - "GET /x%0AERROR%20all%20is%20lost%1B%5B2J HTTP/1.1" 404'
    ]


def test_a_proxy_may_show_the_server_under_a_path() -> None:
    context = make_context(root_path="/ai")
    for path, status in (("/ai/live", 200), ("/ai/ui", 200), ("/ai/version", 401), ("/ai/v1/models", 401)):
        assert ask(context, "GET", path).status_code == status, path
    assert ask(context, "GET", "/ai/version", headers={"x-api-key": "secret"}).status_code == 200
