"""Answers: JSON, errors, and streams of events that end when nobody listens any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.api_error import ApiError, client_gone

JSON = "application/json"
KEEP_ALIVE = b": keep-alive\n\n"
_SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}

PAGE_HEADERS = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
"""Of every page that a browser shows, beside its own policy."""

encode_json = msgspec.json.Encoder().encode
T = TypeVar("T")


def json_response(content: Any, status: int = 200) -> Response:
    """``content`` (words or plain values) as JSON."""
    return Response(encode_json(content), status, media_type=JSON)


def error_response(error: ApiError, path: str) -> Response:
    """An error in the shape that clients of ``path`` know."""
    body = error.body
    if "/v1/messages" in path:
        body = {"type": "error", "error": {"type": anthropic_type(error), "message": error.message}}
    return Response(encode_json(body), error.status, headers=error.headers, media_type=JSON)


def anthropic_type(error: ApiError) -> str:
    """Anthropic's word for the class of an error."""
    types = {503: "overloaded_error", 504: "timeout_error"}
    return types.get(error.status, "api_error" if error.status >= 500 else error.type)


class EventStream(Response):
    """Server-sent events from a generator of whole frames; one write for each.

    When the client is gone the generator is closed. After ``keep_alive_s`` of silence (0: never) a comment is sent.
    """

    def __init__(self, frames: AsyncGenerator[bytes, None], *, keep_alive_s: float = 0.0) -> None:
        super().__init__(headers=_SSE_HEADERS)
        del self.headers["content-length"]
        self._frames = frames
        self._keep_alive_s = keep_alive_s
        self._is_silent = True
        self._is_gone = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        task = asyncio.current_task()
        watcher = asyncio.create_task(self._watch(receive, send, task))
        try:
            async for frame in self._frames:
                self._is_silent = False
                await send({"type": "http.response.body", "body": frame, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except asyncio.CancelledError:
            if not self._is_gone or task is None or task.uncancel():
                raise
        finally:
            watcher.cancel()
            await self._frames.aclose()

    async def _watch(self, receive: Receive, send: Send, task: asyncio.Task[Any] | None) -> None:
        """Wait for the client to leave; meanwhile break long silences."""
        while True:
            try:
                async with asyncio.timeout(self._keep_alive_s or None):
                    message = await receive()
            except TimeoutError:
                if self._is_silent:
                    await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})
                self._is_silent = True
                continue
            if message["type"] == "http.disconnect":
                break
        self._is_gone = True
        if task is not None:
            task.cancel()


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client leaves first (nobody reads what is raised then)."""
    task = asyncio.current_task()
    assert task is not None, "routes run in tasks"
    leaving = asyncio.ensure_future(_leave(request))
    cancel = partial(_cancel, task)
    leaving.add_done_callback(cancel)
    try:
        return await work
    except asyncio.CancelledError:
        if not leaving.done() or task.uncancel():
            raise
        raise client_gone() from None
    finally:
        leaving.remove_done_callback(cancel)
        leaving.cancel()


async def _leave(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _cancel(task: asyncio.Task[Any], leaving: asyncio.Future[None]) -> None:
    task.cancel()
