"""What every request passes before a route: its id, the host it names, and the count of requests."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.frontend.tracing import trace_headers
from octavo.server.api_error import ApiError, as_api_error
from octavo.server.responses import error_response
from octavo.util.os_random import OsRandom

REQUEST_ID_HEADER = "x-request-id"
_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")

access_logger = logging.getLogger("octavo.server.access")


class ServerLoad:
    """How many requests are being answered."""

    def __init__(self) -> None:
        self.num_requests = 0


class Gate:
    """ASGI middleware. ``allowed_hosts`` empty means that any is served.

    The request's id is the client's (X-Request-Id) or a random one: in ``scope["state"]`` and on every answer.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        allowed_hosts: Sequence[str] = (),
        root_path: str = "",
        load: ServerLoad,
        logs_access: bool = True,
    ) -> None:
        self._app = app
        self._load = load
        self._hosts = frozenset(host.lower() for host in allowed_hosts)
        self._root_path = root_path
        self._logs_access = logs_access
        self._random = OsRandom()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if self._root_path:
            scope["root_path"] = self._root_path
        headers = Headers(scope=scope)
        request_id = self._request_id(headers)
        scope.setdefault("state", {})["request_id"] = request_id
        answer = _Answer(scope, send, request_id, logs=self._logs_access)
        if "traceparent" in headers:
            trace_headers.set(dict(headers))
        self._load.num_requests += 1
        try:
            app = self._app if (refusal := self._refusal(scope, headers)) is None else refusal
            await app(scope, receive, answer.send)
        except Exception as error:
            if answer.has_ended:  # the error was answered and logged where it was caught
                return
            if answer.has_started:
                raise
            await error_response(as_api_error(error), scope["path"])(scope, receive, answer.send)
        finally:
            self._load.num_requests -= 1

    def _request_id(self, headers: Headers) -> str:
        given = headers.get(REQUEST_ID_HEADER)
        return self._random.hex() if given is None or not _REQUEST_ID.fullmatch(given) else given

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer to who may not come in."""
        host = _host_name(headers.get("host", ""))
        if self._hosts and host not in self._hosts:
            return error_response(ApiError(403, "this host name is not served here."), scope["path"])
        return None


class _Answer:
    """Puts the request's id on an answer and notes that it has begun."""

    def __init__(self, scope: Scope, send: Send, request_id: str, *, logs: bool) -> None:
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._logs = logs
        self.has_started = False
        self.has_ended = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.has_ended = not message.get("more_body", False)
        elif message["type"] == "http.response.start":
            self.has_started = True
            MutableHeaders(raw=message["headers"])[REQUEST_ID_HEADER] = self._request_id
            if self._logs:
                self._log(message)
        await self._send(message)

    def _log(self, message: Message) -> None:
        scope = self._scope
        client: Any = scope.get("client") or ("unix", 0)
        access_logger.info(
            '%s:%s - "%s %s HTTP/%s" %d', *client[:2], scope["method"], quote(scope["path"]), scope["http_version"],
            message["status"],
        )  # fmt: skip


def _host_name(header: str) -> str:
    """The host of a Host header, without its port."""
    name = header.lower()
    return name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]
