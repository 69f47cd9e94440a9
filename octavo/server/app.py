"""The application: routes, errors, and the gate in front of them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute
from starlette.types import ASGIApp

from octavo.server.api_error import ApiError, as_api_error
from octavo.server.context import ServerContext
from octavo.server.description import Description
from octavo.server.exact_routes import ExactRoutes
from octavo.server.gate import REQUEST_ID_HEADER, Gate
from octavo.server.key_check import KeyCheck
from octavo.server.responses import error_response
from octavo.server.routes import all_routes
from octavo.server.ui.page import add_page
from octavo.words.errors import OctavoError

READABLE_HEADERS = (REQUEST_ID_HEADER, "retry-after")
"""What a script of another origin may read of an answer, beside its body."""


def build_app(context: ServerContext) -> Starlette:
    """All routes of a server, without the gate; those that generate are looked for first."""
    config = context.config
    routes = list(all_routes(context))
    app = Starlette(
        routes=[
            StarletteRoute(route.path, route.endpoint, methods=list(route.methods))
            for route in sorted(routes, key=lambda route: not route.streams)
        ]
    )
    if not config.disable_docs:
        description = Description(routes, config.root_path)
        for path in Description.PATHS:
            app.router.routes.append(StarletteRoute(path, description, methods=["GET"]))
    if not config.disable_ui:
        add_page(app)
    for kind in (ApiError, OctavoError, HTTPException, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


def build_gate(app: Starlette, context: ServerContext, api_keys: list[str]) -> ASGIApp:
    """The application behind its gate: what the server runs."""
    config = context.config
    answering: ASGIApp = ExactRoutes(app, _answer_error)
    if api_keys:
        answering = KeyCheck(answering, api_keys, root_path=config.root_path)
    if origins := words_of(config.allowed_origins):
        answering = CORSMiddleware(
            answering, origins, allow_methods=["*"], allow_headers=["*"], expose_headers=READABLE_HEADERS
        )
    return Gate(
        answering,
        allowed_hosts=words_of(config.allowed_hosts),
        root_path=config.root_path,
        load=context.load,
        logs_access=not config.disable_access_log,
    )


def words_of(listed: str | None) -> list[str]:
    """The parts of a list that is written with commas."""
    return [word for part in (listed or "").split(",") if (word := part.strip())]


async def _answer_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        words = {404: "there is no such route.", 405: "this route needs another method."}
        error = ApiError(
            error.status_code, words.get(error.status_code, str(error.detail)), headers=dict(error.headers or {})
        )
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return error_response(as_api_error(error, path), path)
