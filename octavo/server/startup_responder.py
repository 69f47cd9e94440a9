"""Answers on the server's socket from the moment it is bound until the real application is imported and serves.

It knows nothing but the first line of a request: everything is 503, "loading", but for /live.
"""

from __future__ import annotations

import contextlib
import json
import re
import selectors
import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

READ_TIMEOUT_S = 0.5
MAX_BYTES = 16_384
_MESSAGE = "the model is loading; try again in a moment."
_ERROR = {"error": {"message": _MESSAGE, "type": "server_error", "param": None, "code": None}}
_REQUEST_ID = re.compile(rb"\r\nx-request-id: *([\x21-\x7e]{1,128})\r\n", re.IGNORECASE)


class StartupResponder:
    """Accepts on ``listener`` in a thread; ``stop`` leaves the socket, still listening, to its successor.

    With ``tls`` it speaks HTTPS.
    """

    def __init__(self, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self._listener = listener
        self._tls = tls
        self._stopper, self._stopped = socket.socketpair()
        listener.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="octavo-startup", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Return when nothing more is accepted; harmless when called again."""
        with contextlib.suppress(OSError):
            self._stopper.send(b"x")
        self._thread.join()
        self._stopper.close()
        self._stopped.close()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while not any(key.fileobj is self._stopped for key, _ in selector.select()):
                with contextlib.suppress(OSError):
                    connection, _ = self._listener.accept()
                    connection.settimeout(READ_TIMEOUT_S)
                    with (
                        connection if self._tls is None else self._tls.wrap_socket(connection, server_side=True) as each
                    ):
                        _answer(each)


def _answer(connection: socket.socket) -> None:
    received = b""
    while b"\r\n\r\n" not in received and len(received) < MAX_BYTES:
        part = connection.recv(MAX_BYTES)
        if not part:
            return
        received += part
    connection.sendall(answer_to(received))
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.recv(MAX_BYTES)  # what was still on its way: closing over it would take back the answer


def answer_to(request: bytes) -> bytes:
    """The whole answer to a request of which at least the headers are there."""
    _, _, rest = request.partition(b" ")
    path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
    is_live = path == b"/live"
    content = {"status": "loading"} if path in (b"/live", b"/health", b"/ping") else _ERROR
    body = json.dumps(content).encode()
    found = _REQUEST_ID.search(request)
    headers = [
        b"HTTP/1.1 200 OK" if is_live else b"HTTP/1.1 503 Service Unavailable",
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"retry-after: 1",
        b"connection: close",
        *([b"x-request-id: " + found[1]] if found else []),
    ]
    return b"\r\n".join(headers) + b"\r\n\r\n" + body
