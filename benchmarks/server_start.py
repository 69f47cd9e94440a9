"""How long `octavo serve` takes to say "loading", to answer its first request, and to end: medians.

python benchmarks/server_start.py [--model smollm2-135m] [--repeat 5]

Each round starts a server on a free port with the page cache warm (one round before is not counted) and asks /health
and then /v1/completions every few milliseconds. Times are from the start of the process, on the wall. One JSON line.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

POLL_S = 0.005
TIMEOUT_S = 120
BODY = json.dumps({"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    rounds = [start_and_end(arguments.model) for _ in range(arguments.repeat + 1)][1:]
    medians = {name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]}
    print(json.dumps({"model": arguments.model, "repeat": arguments.repeat, **medians}))


def start_and_end(model: str) -> dict[str, float]:
    """Seconds to each event of one server's life."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", "0"]
        began = time.monotonic()
        with log.open("wb") as output:
            server = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            port = int(until(lambda: port_in(log), server, log))
            loading = until(
                lambda: status(port, "GET", "/health") is not None and time.monotonic() - began, server, log
            )
            answered = until(
                lambda: status(port, "POST", "/v1/completions") == 200 and time.monotonic() - began, server, log
            )
            asked = time.monotonic()
            server.send_signal(signal.SIGTERM)
            server.wait(TIMEOUT_S)
            return {"health_s": loading, "first_answer_s": answered, "end_s": time.monotonic() - asked}
        finally:
            server.kill()
            server.wait()


def until(found: Callable[[], float | None], server: subprocess.Popen[bytes], log: Path) -> float:
    """The first true value that ``found`` gives."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and server.poll() is None:
        if value := found():
            return value
        time.sleep(POLL_S)
    raise SystemExit(f"the server did not start: {log.read_text()}")


def port_in(log: Path) -> int | None:
    found = re.search(r"Listening on http://127.0.0.1:(\d+)", log.read_text())
    return int(found[1]) if found else None


def status(port: int, method: str, path: str) -> int | None:
    """The status of an answer, None where there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request(method, path, BODY if method == "POST" else None, {"content-type": "application/json"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


if __name__ == "__main__":
    main()
