"""CPU time of a server with nothing to do, alone and with idle connections: python benchmarks/idle.py

Both of its processes are looked at, as a share of one CPU's time. One JSON line for each number of connections.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import time

import psutil
from local_server import LocalServer

SETTLE_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--num-connections", type=int, nargs="+", default=[0, 500])
    arguments = parser.parse_args()
    with LocalServer(arguments.model) as server:
        port = server.wait_until_ready()
        front = psutil.Process(server.process.pid)
        for number in arguments.num_connections:
            share = idle_share([front, *front.children(recursive=True)], port, number, arguments.seconds)
            print(json.dumps({"num_connections": number, "seconds": arguments.seconds, "cpu_percent": share}))


def idle_share(processes: list[psutil.Process], port: int, num_connections: int, seconds: float) -> float:
    """Percent of one CPU that the processes use together while so many clients say nothing."""
    with contextlib.ExitStack() as connections:
        for _ in range(num_connections):
            connections.enter_context(socket.create_connection(("127.0.0.1", port)))
        time.sleep(SETTLE_S)
        before, began = cpu_seconds(processes), time.monotonic()
        time.sleep(seconds)
        spent = cpu_seconds(processes) - before
        return round(100 * spent / (time.monotonic() - began), 3)


def cpu_seconds(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return float(sum(each.user + each.system for each in times))


if __name__ == "__main__":
    main()
