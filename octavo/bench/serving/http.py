"""A small HTTP/1.1 client for server-sent events: a load generator must cost less than what it measures."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from octavo.words.errors import ConfigError

MAX_LINE_BYTES = 16 << 20
MAX_ERROR_BYTES = 4096


class HttpError(Exception):
    """The server answered with an error, or with what is no HTTP."""


@dataclass(frozen=True)
class Server:
    """Where requests go. ``path`` stands before every endpoint; ``headers`` go with every request."""

    host: str
    port: int
    path: str = ""
    tls: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at(cls, url: str, headers: Mapping[str, str]) -> Server:
        """From a URL such as http://127.0.0.1:8000. Raises ConfigError for another kind of text."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"--base-url {url!r} is no address such as http://127.0.0.1:8000")
        tls = parts.scheme == "https"
        return cls(parts.hostname, parts.port or (443 if tls else 80), parts.path.rstrip("/"), tls, headers)


class Connections:
    """Open connections to one server, used again where the server lets them be."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._tls = ssl.create_default_context() if server.tls else None
        self._idle: list[Connection] = []

    async def get(self, path: str) -> Any:
        """The JSON that a GET brings. Raises HttpError or OSError."""
        connection = await self._connect()
        try:
            await connection.send("GET", path, self._server, b"")
            return json.loads(b"".join([part async for part in connection.body()]))
        finally:
            connection.close()

    async def post_stream(self, path: str, body: bytes) -> AsyncIterator[bytes]:
        """The data of each server-sent event that a POST brings. Raises HttpError or OSError.

        The connection is kept for the next request if the stream was read to its end.
        """
        connection = self._idle.pop() if self._idle else await self._connect()
        complete = False
        try:
            try:
                await connection.send("POST", path, self._server, body)
            except (ConnectionError, asyncio.IncompleteReadError):
                if not connection.was_used:
                    raise
                connection.close()  # the server closed it while it lay idle
                connection = await self._connect()
                await connection.send("POST", path, self._server, body)
            async for event in _events(connection.body()):
                yield event
            complete = connection.is_reusable
        except asyncio.IncompleteReadError:
            raise HttpError("the server closed the connection in the middle of an answer") from None
        finally:
            if complete:
                self._idle.append(connection)
            else:
                connection.close()

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> Connection:
        server = self._server
        reader, writer = await asyncio.open_connection(server.host, server.port, ssl=self._tls, limit=MAX_LINE_BYTES)
        return Connection(reader, writer)


class Connection:
    """One connection, for one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._headers: dict[str, str] = {}
        self.was_used = False

    @property
    def is_reusable(self) -> bool:
        """Whether another request may follow the answer that was read."""
        has_end = "chunked" in self._headers.get("transfer-encoding", "") or "content-length" in self._headers
        return has_end and self._headers.get("connection", "").lower() != "close"

    async def send(self, method: str, path: str, server: Server, body: bytes) -> None:
        """Send a request and read the answer's head. Raises HttpError for a status that is not 200."""
        lines = [f"{method} {server.path}{path} HTTP/1.1", f"Host: {server.host}:{server.port}"]
        lines += [f"{name}: {value}" for name, value in server.headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        self._writer.write("\r\n".join([*lines, "", ""]).encode() + body)
        await self._writer.drain()
        status = await self._read_head()
        self.was_used = True
        if status != 200:
            text = b"".join([part async for part in self.body()])
            raise HttpError(f"status {status}: {text[:MAX_ERROR_BYTES].decode(errors='replace')}")

    async def body(self) -> AsyncIterator[bytes]:
        """The answer's body, in the pieces it comes in."""
        if "chunked" in self._headers.get("transfer-encoding", ""):
            while size := int((await self._line()).split(b";")[0], 16):
                yield await self._reader.readexactly(size)
                await self._reader.readexactly(2)
            while await self._line():
                pass
        elif "content-length" in self._headers:
            yield await self._reader.readexactly(int(self._headers["content-length"]))
        else:
            while piece := await self._reader.read(65536):
                yield piece

    def close(self) -> None:
        self._writer.close()

    async def _read_head(self) -> int:
        version, _, rest = (await self._line()).partition(b" ")
        if not version.startswith(b"HTTP/1."):
            raise HttpError("the server does not speak HTTP/1.1")
        self._headers = {}
        while line := await self._line():
            name, _, value = line.decode("latin-1").partition(":")
            self._headers[name.strip().lower()] = value.strip()
        return int(rest.split()[0])

    async def _line(self) -> bytes:
        line = await self._reader.readuntil(b"\n")
        return line.rstrip(b"\r\n")


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of events, which end with an empty line, however the pieces are cut."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
