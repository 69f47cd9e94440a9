"""How long `octavo serve` takes to say "loading", to answer its first request, and to end: medians.

python benchmarks/server_start.py [--model smollm2-135m] [--repeat 5]

Each round starts a server on a free port with the page cache warm (one round before is not counted) and asks /health
and then /v1/completions every few milliseconds. Times are from the start of the process, on the wall. Then it is sent
SIGTERM, and so are others as soon as they listen, and while they warm up: seconds to the end of each. One JSON line.
"""

from __future__ import annotations

import argparse
import http.client
import json
import signal
import statistics
import time

from local_server import LocalServer

TIMEOUT_S = 120
# What the log says when a phase begins.
PHASES = {"listening": "Listening on", "warm_up": "Available KV cache memory"}
BODY = json.dumps({"prompt": "The capital of France is", "max_tokens": 1, "temperature": 0})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    rounds = [one_round(arguments.model) for _ in range(arguments.repeat + 1)][1:]
    medians = {name: round(statistics.median(each[name] for each in rounds), 3) for name in rounds[0]}
    print(json.dumps({"model": arguments.model, "repeat": arguments.repeat, **medians}))


def one_round(model: str) -> dict[str, float]:
    """Seconds to each event of the lives of a server that serves, and of one for each phase before."""
    return start_and_end(model) | {f"end_{phase}_s": end_in(model, line) for phase, line in PHASES.items()}


def end_in(model: str, line: str) -> float:
    """Seconds from SIGTERM to the end of a server that has just logged ``line``."""
    with LocalServer(model) as server:
        server.wait_for_line(line)
        return end(server)


def end(server: LocalServer) -> float:
    """Seconds from SIGTERM to the end."""
    asked = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    server.process.wait(TIMEOUT_S)
    return time.monotonic() - asked


def start_and_end(model: str) -> dict[str, float]:
    """Seconds to each event of one server's life."""
    began = time.monotonic()
    with LocalServer(model) as server:
        port = server.wait_for_port()
        loading = server.until(lambda: status(port, "GET", "/health") is not None and time.monotonic() - began)
        answered = server.until(lambda: status(port, "POST", "/v1/completions") == 200 and time.monotonic() - began)
        return {"health_s": loading, "first_answer_s": answered, "end_serving_s": end(server)}


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
