"""The FastAPI application: routes, errors, and the gate in front of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from octavo import __version__
from octavo.server.api_error import ApiError, as_api_error
from octavo.server.context import ServerContext
from octavo.server.gate import Gate
from octavo.server.responses import error_response
from octavo.server.routes import Route, all_routes, component_schemas, openapi_of, responses_of
from octavo.server.ui.page import add_page
from octavo.words.errors import OctavoError


def build_app(context: ServerContext) -> FastAPI:
    """All routes of a server, without the gate."""
    config = context.config
    shown = not config.disable_docs
    app = FastAPI(
        title="Octavo",
        version=__version__,
        root_path=config.root_path,
        docs_url="/docs" if shown else None,
        openapi_url="/openapi.json" if shown else None,
        redoc_url=None,
    )
    routes = list(all_routes(context))
    _add_routes(app, routes)
    if not config.disable_ui:
        add_page(app)
    for kind in (ApiError, OctavoError, HTTPException, RequestValidationError, Exception):
        app.add_exception_handler(kind, _answer_error)
    if origins := words_of(config.allowed_origins):
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"])
    _describe(app, routes)
    return app


def build_gate(app: FastAPI, context: ServerContext, api_keys: list[str]) -> ASGIApp:
    """The application behind its gate: what the server runs."""
    config = context.config
    return Gate(
        app,
        api_keys=api_keys,
        allowed_hosts=words_of(config.allowed_hosts),
        root_path=config.root_path,
        load=context.load,
        logs_access=not config.disable_access_log,
    )


def words_of(listed: str | None) -> list[str]:
    """The parts of a list that is written with commas."""
    return [word for part in (listed or "").split(",") if (word := part.strip())]


def _add_routes(app: FastAPI, routes: list[Route]) -> None:
    """FastAPI describes, Starlette answers: its plain routes are found first, those that generate before all others."""
    for route in routes:
        _describe_route(app, route)
    app.router.routes[:0] = [
        StarletteRoute(route.path, route.endpoint, methods=list(route.methods), include_in_schema=False)
        for route in sorted(routes, key=lambda route: not route.streams)
    ]


def _describe_route(app: FastAPI, route: Route) -> None:
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


def _describe(app: FastAPI, routes: list[Route]) -> None:
    """Put the schemas of our structs into the OpenAPI description, which FastAPI makes when it is first asked for."""
    made_by_fastapi = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = made_by_fastapi()
            components = description.setdefault("components", {}).setdefault("schemas", {})
            components.update(component_schemas(routes))
        return made_by_fastapi()

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        words = {404: "there is no such route.", 405: "this route needs another method."}
        error = ApiError(
            error.status_code, words.get(error.status_code, str(error.detail)), headers=dict(error.headers or {})
        )
    elif isinstance(error, RequestValidationError):
        error = ApiError(400, "; ".join(str(each.get("msg")) for each in error.errors()))
    return error_response(as_api_error(error), request.url.path)
