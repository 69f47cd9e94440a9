"""A server that speaks just enough of OpenAI's API to be put under load: it counts to what was asked for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any


class FakeOpenAIServer:
    """Answers on 127.0.0.1. ``bodies`` are what it was asked; prompts with "fail" in them get an error.

    Bytes go out in pieces of ``piece_bytes``, so that events and chunks are cut anywhere.
    """

    def __init__(self, model: str, *, piece_bytes: int = 1 << 16, close_after: int | None = None) -> None:
        self.model = model
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.num_connections = 0
        self.max_open = 0
        self._open = 0
        self._piece_bytes = piece_bytes
        self._close_after = close_after

    @contextmanager
    def running(self) -> Iterator[str]:
        """Serve in a thread; yields the address."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        server = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, "127.0.0.1", 0), loop).result(10)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            asyncio.run_coroutine_threadsafe(_end(server), loop).result(10)
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            for number in range(1_000_000):
                head = await reader.readuntil(b"\r\n\r\n")
                if number == self._close_after:
                    return
                await self._answer(head.decode(), reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.headers.append(head)
        if head.startswith("GET"):
            await self._send(writer, _plain("200 OK", {"data": [{"id": self.model}]}))
            return
        length = next(
            int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length")
        )
        body = json.loads(await reader.readexactly(length))
        self.bodies.append(body)
        if "fail" in json.dumps(body):
            await self._send(writer, _plain("400 Bad Request", {"error": {"message": "as you wish"}}))
            return
        self._open += 1
        self.max_open = max(self.max_open, self._open)
        await self._send(writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        async for event in _events(body):
            data = f"data: {event}\n\n".encode()
            await self._send(writer, f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self._open -= 1
        await self._send(writer, b"0\r\n\r\n")

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        for start in range(0, len(data), self._piece_bytes):
            writer.write(data[start : start + self._piece_bytes])
            await writer.drain()


async def _events(body: dict[str, Any]) -> AsyncIterator[str]:
    is_chat = "messages" in body
    number = body.get("max_completion_tokens") or body.get("max_tokens")
    for token in range(number):
        await asyncio.sleep(0.002)
        text = f" {token}"
        yield json.dumps({"choices": [{"delta": {"content": text}} if is_chat else {"text": text}]})
    yield json.dumps({"choices": [], "usage": {"completion_tokens": number}})
    yield "[DONE]"


def _plain(status: str, value: Any) -> bytes:
    data = json.dumps(value).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


async def _end(server: asyncio.Server) -> None:
    server.close()
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.sleep(0)
