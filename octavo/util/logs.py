"""Log lines: to stderr, each with the name of the process that wrote it."""

from __future__ import annotations

import json
import logging
import sys

_ROOT = "octavo"


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
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter(process_name) if as_json else _TextFormatter(process_name))
    logger = logging.getLogger(_ROOT)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(level)


def adopt_logger(name: str, *, level: str = "WARNING") -> None:
    """Let another library's logger write like ours, from ``level`` on; a program does so for what runs in its name."""
    logger = logging.getLogger(name)
    logger.handlers = logging.getLogger(_ROOT).handlers
    logger.propagate = False
    logger.setLevel(level)
