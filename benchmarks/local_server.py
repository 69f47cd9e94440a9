"""`octavo serve` on a free port of this machine, for a benchmark: started, waited for, ended."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

POLL_S = 0.005
START_TIMEOUT_S, END_TIMEOUT_S = 120, 30

T = TypeVar("T")


class LocalServer:
    """A server with these flags, from the beginning of a ``with`` block to its end; ``process`` is its front end."""

    def __init__(self, model: str, *flags: str) -> None:
        self._command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", "0", *flags]

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory()
        self._log = Path(self._folder.name) / "log"
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.process.terminate()
        try:
            self.process.wait(END_TIMEOUT_S)
        finally:
            self.process.kill()
            self._folder.cleanup()

    def wait_for_port(self) -> int:
        """The port it is bound to, which is before its model is loaded."""
        return int(self.until(lambda: re.search(r"Listening on http://127.0.0.1:(\d+)", self._log.read_text()))[1])

    def wait_until_ready(self) -> int:
        """The port, once the engine is ready."""
        self.wait_for_line("startup complete")
        return self.wait_for_port()

    def wait_for_line(self, part: str) -> None:
        """Return once the log has a line with ``part`` in it."""
        self.until(lambda: part in self._log.read_text())

    def until(self, found: Callable[[], T | None]) -> T:
        """The first true value that ``found`` gives; SystemExit with the log where the server ends or is too slow."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self.process.poll() is None:
            if value := found():
                return value
            time.sleep(POLL_S)
        raise SystemExit(f"the server did not start: {self._log.read_text()}")
