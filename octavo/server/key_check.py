"""Who may come in: those with a key, and everybody to what is open."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.server.api_error import ApiError
from octavo.server.responses import error_response

OPEN_PATHS = frozenset({"/live", "/health", "/ping", "/metrics", "/ui"})
"""Routes that need no key."""
OPEN_PREFIXES = ("/ui/static/",)
"""Static files of the page; what it shows needs the key."""


class KeyCheck:
    """ASGI middleware: a request to anything but the open routes needs one of ``keys``."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], *, root_path: str = "") -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app if self._is_open(scope) or self._has_key(Headers(scope=scope)) else _refusal(scope)
        await app(scope, receive, send)

    def _is_open(self, scope: Scope) -> bool:
        path = scope["path"].removeprefix(self._root_path)
        return scope["method"] == "OPTIONS" or path in OPEN_PATHS or path.startswith(OPEN_PREFIXES)

    def _has_key(self, headers: Headers) -> bool:
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", ""), bearer.strip() if scheme.lower() == "bearer" else ""]
        # Every comparison is made, in constant time each: nothing is learnt from how long it takes.
        found = [hmac.compare_digest(each.encode("latin-1", "replace"), key) for each in given for key in self._keys]
        return any(found)


def _refusal(scope: Scope) -> ASGIApp:
    missing = ApiError(
        401,
        "no valid API key: send one as Authorization: Bearer KEY or x-api-key: KEY.",
        code="invalid_api_key",
        headers={"www-authenticate": "Bearer"},
    )
    return error_response(missing, scope["path"])
