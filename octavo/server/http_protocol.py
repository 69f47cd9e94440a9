"""HTTP/1.1 with what uvicorn's fast parser does not have.

Limits on a request's headers and on the time it takes to come, an ear for clients that offer HTTP/2 in passing, and
silence where a client has gone.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_REFUSED = (
    b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"  # fmt: skip
)
_BODY = b'{"error":{"message":"%s","type":"invalid_request_error","param":null,"code":null}}'
_OF_AN_OFFER = frozenset({b"upgrade", b"http2-settings", b"connection"})


def limited_protocol(header_bytes: int, timeout_s: float) -> type[HttpToolsProtocol]:
    """A protocol that closes the connection when a request's headers are larger than that (431), or when a request
    is not there whole in that time (408; 0: any time)."""

    class ConfiguredProtocol(LimitedProtocol):
        max_header_bytes = header_bytes
        read_timeout_s = timeout_s

    return ConfiguredProtocol


class LimitedProtocol(HttpToolsProtocol):
    """One connection."""

    max_header_bytes: ClassVar[int]
    read_timeout_s: ClassVar[float]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.parser = _Parser(self)
        self._num_header_bytes = 0
        self._in_headers = True
        self._has_begun = False
        self._is_whole = False
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Transport(transport))  # type: ignore[arg-type]
        self._expect_the_rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._num_header_bytes += len(data)
        super().data_received(data)
        if self._in_headers and self._num_header_bytes > self.max_header_bytes and not self.transport.is_closing():
            self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large.")
        if not self._is_whole:
            self._expect_the_rest()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._num_header_bytes = 0
        self._in_headers = True
        self._has_begun = True
        self._is_whole = False

    def on_headers_complete(self) -> None:
        self._in_headers = False
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._num_header_bytes = 0
        self._in_headers = True
        self._is_whole = True
        self._expect_nothing()

    def go_on_without_upgrade(self, rest: bytes) -> None:
        """Read a request that offers another protocol as if it did not: who offers HTTP/2 takes 1.1 as well."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        if method == b"CONNECT":
            raise httptools.HttpParserError("a tunnel is not possible")
        kept = b"".join(b"%s: %s\r\n" % header for header in self.headers if header[0] not in _OF_AN_OFFER)
        self.parser = _Parser(self)
        self.parser.feed_data(b"%s %s HTTP/%s\r\n%s\r\n%s" % (method, self.url, version, kept, rest))

    def send_400_response(self, msg: str) -> None:
        self._refuse(b"400 Bad Request", b"this is no valid HTTP request.")

    def _refuse(self, status: bytes, reason: bytes) -> None:
        body = _BODY % reason
        self.transport.write(_REFUSED % (status, len(body), body))
        self.transport.close()

    def _expect_the_rest(self) -> None:
        if self.read_timeout_s and self._deadline is None:
            self._deadline = self.loop.call_later(self.read_timeout_s, self._give_up)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self._is_answering:
            self._expect_the_rest()  # an answer is not broken into
        elif not self._has_begun:
            self.transport.close()
        else:
            self._refuse(b"408 Request Timeout", b"the request did not come whole in time.")

    @property
    def _is_answering(self) -> bool:
        """Whether part of an answer is on its way, or the whole of one to come."""
        cycle = self.cycle
        return cycle is not None and not cycle.response_complete and (cycle.response_started or bool(self.pipeline))


class _Parser(httptools.HttpRequestParser):
    """Tells its protocol where the headers end of a request that offers another protocol."""

    def __init__(self, protocol: LimitedProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._protocol.go_on_without_upgrade(data[offer.args[0] :])


class _Transport:
    """The way to a client. What is written after it has closed is dropped: uvicorn learns of it a moment later."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
