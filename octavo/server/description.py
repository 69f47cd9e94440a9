"""What /docs and /openapi.json say: FastAPI describes the routes that Starlette answers.

FastAPI is imported, and the description made, when it is first asked for: few servers are ever asked, and neither
their start nor their requests have to pay for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo import __version__
from octavo.server.docs_page import HEADERS, docs_page
from octavo.server.routes import Route, component_schemas, openapi_of, responses_of

if TYPE_CHECKING:
    from fastapi import FastAPI


class Description:
    """An ASGI application for ``PATHS``, which describes ``routes``."""

    PATHS = ("/openapi.json", "/docs")

    def __init__(self, routes: Sequence[Route], root_path: str) -> None:
        self._routes = routes
        self._root_path = root_path
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app: ASGIApp = await asyncio.to_thread(self._made)
        if scope["path"].endswith("/docs"):
            app = self._page
        await app(scope, receive, send)

    def _made(self) -> FastAPI:
        with self._lock:
            return self._app

    @cached_property
    def _app(self) -> FastAPI:
        from fastapi import FastAPI

        app = FastAPI(title="Octavo", version=__version__, root_path=self._root_path, docs_url=None, redoc_url=None)
        for route in self._routes:
            _describe(app, route)
        _add_schemas(app, self._routes)
        app.openapi()
        return app

    @cached_property
    def _page(self) -> Response:
        return Response(docs_page(self._app.openapi()), media_type="text/html", headers=HEADERS)


def _describe(app: FastAPI, route: Route) -> None:
    for method in route.methods:
        app.add_api_route(
            route.path,
            route.endpoint,
            methods=[method],
            operation_id=f"{method.lower()} {route.path}",
            tags=[route.tag],
            response_class=Response,
            response_model=None,
            responses=responses_of(route),
            openapi_extra=openapi_of(route),
        )


def _add_schemas(app: FastAPI, routes: Sequence[Route]) -> None:
    """Put the schemas of our structs into the OpenAPI description, which FastAPI makes when it is first asked for."""
    made_by_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = made_by_fastapi()
            components = description.setdefault("components", {}).setdefault("schemas", {})
            components.update(component_schemas(list(routes)))
        return made_by_fastapi()

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
