"""The table of routes in front of Starlette's patterns: the same answers, found at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from octavo.server.exact_routes import ExactRoutes
from tests.server.test_gate import ask, make_context


async def known(request: Request) -> Response:
    return PlainTextResponse(request.url.path)


async def broken(request: Request) -> Response:
    raise ValueError("no")


async def answer_error(request: Request, error: Exception) -> Response:
    return PlainTextResponse(f"answered {error}", 500)


class CountingApp(Starlette):
    """Counts what is left to it."""

    num_calls = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.num_calls += 1
        await super().__call__(scope, receive, send)


def asked(app: Any, method: str, path: str, root_path: str = "") -> httpx.Response:
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path)

    return asyncio.run(send())


@pytest.mark.parametrize(
    ("method", "path", "root_path", "status", "num_left"),
    [
        ("GET", "/known", "", 200, 0),
        ("HEAD", "/known", "", 200, 0),
        ("GET", "/broken", "", 500, 0),
        ("POST", "/known", "", 405, 1),
        ("GET", "/with/one", "", 200, 1),
        ("GET", "/known/", "", 307, 1),
        ("GET", "/nothing", "", 404, 1),
        ("GET", "/proxy/known", "/proxy", 200, 1),
    ],
)
def test_only_what_is_no_plain_path_is_left_to_the_application(
    method: str, path: str, root_path: str, status: int, num_left: int
) -> None:
    app = CountingApp(routes=[Route("/known", known), Route("/with/{part}", known), Route("/broken", broken)])
    assert asked(ExactRoutes(app, answer_error), method, path, root_path).status_code == status
    assert app.num_calls == num_left


def test_fastapi_is_loaded_by_the_first_who_asks_for_the_description() -> None:
    code = "import sys, octavo.server.running; sys.exit('fastapi' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
    context = make_context()
    assert ask(context, "GET", "/openapi.json", keys=[]).json()["info"]["title"] == "Octavo"
    assert ask(make_context(disable_docs=True), "GET", "/openapi.json", keys=[]).status_code == 404
