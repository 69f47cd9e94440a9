"""The short way to a route.

Starlette tries one pattern after the other, behind its middleware, and wraps every call twice to catch errors. For a
request of few tokens that takes as long as all that is said in its answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

AnswerError = Callable[[Request, Exception], Awaitable[Response]]


class ExactRoutes:
    """An ASGI application that finds those routes of ``app`` in a table that have no parameter in their path.

    Everything else is left to ``app``: parameters, wrong methods, slashes too many, prefixes of a proxy.
    ``answer_error`` answers what an endpoint raises.
    """

    def __init__(self, app: Starlette, answer_error: AnswerError) -> None:
        self._app: ASGIApp = app
        self._answer_error = answer_error
        self._endpoints = {
            (method, route.path): route.endpoint
            for route in app.routes
            if isinstance(route, Route) and inspect.isroutine(route.endpoint) and "{" not in route.path
            for method in route.methods or ()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get((scope.get("method", ""), scope.get("path", "")))
        if endpoint is None or scope.get("root_path"):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive, send)
        try:
            response = await endpoint(request)
        except Exception as error:
            response = await self._answer_error(request, error)
        await response(scope, receive, send)
