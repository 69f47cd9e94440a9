"""Log lines: to stderr, each with the name of the process that wrote it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import select
import sys

_ROOT = "octavo"
# A pipe that is ready takes so many bytes at once without making the writer wait (POSIX).
_PIPE_BYTES = select.PIPE_BUF
MAX_WAITING_BYTES = 1 << 20
LAST_WAIT_MS = 1000


class _NonBlockingHandler(logging.Handler):
    """Writes to a descriptor and never waits for who reads it: event loops and engine loops log.

    Lines that nobody takes wait, up to MAX_WAITING_BYTES of them; what comes then is dropped, and a line tells how
    much it was. At the end of the process the reader has LAST_WAIT_MS to take what waits.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._waiting = bytearray()
        self._num_dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self._line(record)
        except Exception:  # as every handler of the standard library: a wrong log call ends no program
            self.handleError(record)
            return
        if len(self._waiting) + len(line) <= MAX_WAITING_BYTES:
            self._waiting += line
        else:
            self._num_dropped += 1
        self._write(wait_ms=0)

    def flush(self) -> None:
        with self.lock or contextlib.nullcontext():
            self._write(wait_ms=LAST_WAIT_MS)

    def _write(self, wait_ms: int) -> None:
        try:
            while self._waiting and self._poll.poll(wait_ms):
                piece = bytes(self._waiting[:_PIPE_BYTES])
                del self._waiting[:_PIPE_BYTES]  # first: a signal that ends the write must not have it written twice
                self._waiting[:0] = piece[os.write(self._descriptor, piece) :]
                self._tell_of_dropped()
        except OSError:  # nobody will ever read it
            self._waiting.clear()

    def _tell_of_dropped(self) -> None:
        if self._num_dropped and not self._waiting:
            message = f"{self._num_dropped} log lines were dropped: whoever reads them was too slow"
            self._num_dropped = 0
            self._waiting += self._line(
                logging.LogRecord(__name__, logging.WARNING, __file__, 0, message, args=None, exc_info=None)
            )

    def _line(self, record: logging.LogRecord) -> bytes:
        return (self.format(record) + "\n").encode(errors="backslashreplace")


class _TextFormatter(logging.Formatter):
    def __init__(self, process_name: str) -> None:
        super().__init__(f"%(levelname)s %(asctime)s ({process_name} pid=%(process)d) %(message)s", "%m-%d %H:%M:%S")


class _JsonFormatter(logging.Formatter):
    """One object a line: time (seconds), level, process, pid, logger, message, error."""

    def __init__(self, process_name: str) -> None:
        super().__init__()
        self._process_name = process_name

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": record.created,
            "level": record.levelname,
            "process": self._process_name,
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def init_logging(*, level: str = "INFO", as_json: bool = False, process_name: str = "main") -> None:
    """Send the lines of ``octavo.*`` loggers to stderr; called by programs, never by the library in a user's process.

    A second call replaces what the first one set. Other libraries' loggers stay as they are.
    """
    handler = _stderr_handler()
    handler.setFormatter(_JsonFormatter(process_name) if as_json else _TextFormatter(process_name))
    logger = logging.getLogger(_ROOT)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level)


def _stderr_handler() -> logging.Handler:
    try:
        return _NonBlockingHandler(sys.stderr.fileno())
    except (AttributeError, io.UnsupportedOperation):  # stderr is closed, or is something that a program put there
        return logging.StreamHandler(sys.stderr)


def adopt_logger(name: str, *, level: str = "WARNING") -> None:
    """Let another library's logger write like ours, from ``level`` on; a program does so for what runs in its name."""
    logger = logging.getLogger(name)
    logger.handlers = logging.getLogger(_ROOT).handlers
    logger.propagate = False
    logger.setLevel(level)
