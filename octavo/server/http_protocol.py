"""HTTP/1.1 with a limit on the headers of a request, which uvicorn's fast parser does not have."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_REFUSED = (
    b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"  # fmt: skip
)
_BODY = b'{"error":{"message":"%s","type":"invalid_request_error","param":null,"code":null}}'


def limited_protocol(max_header_bytes: int) -> type[HttpToolsProtocol]:
    """A protocol that answers 431 and closes the connection when a request's headers are larger than that."""

    class LimitedProtocol(HttpToolsProtocol):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            self._num_header_bytes = 0
            self._in_headers = True

        def data_received(self, data: bytes) -> None:
            if self._in_headers:
                self._num_header_bytes += len(data)
            super().data_received(data)
            if self._in_headers and self._num_header_bytes > max_header_bytes and not self.transport.is_closing():
                self._refuse(b"431 Request Header Fields Too Large", b"the headers are too large.")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._num_header_bytes = 0
            self._in_headers = True

        def on_headers_complete(self) -> None:
            self._in_headers = False
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            super().on_message_complete()
            self._num_header_bytes = 0
            self._in_headers = True

        def send_400_response(self, msg: str) -> None:
            self._refuse(b"400 Bad Request", b"this is no valid HTTP request.")

        def _refuse(self, status: bytes, reason: bytes) -> None:
            body = _BODY % reason
            self.transport.write(_REFUSED % (status, len(body), body))
            self.transport.close()

    return LimitedProtocol
