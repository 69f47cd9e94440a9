"""CPU time of the server's front-end process, per streamed token and per request: python benchmarks/front_end.py

A server whose engine makes up tokens (--load-format mock) streams to raw sockets on this machine. What is measured is
the process's CPU time (user and system), so other work on the machine hardly moves it. One JSON line per load.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import time
from typing import Any

import psutil
from local_server import LocalServer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--chat", action="store_true", help="chat completions in place of completions")
    arguments = parser.parse_args()
    flags = ("--load-format", "mock", "--max-model-len", "2048", "--disable-access-log", "--disable-log-stats")
    with LocalServer(arguments.model, *flags) as server:
        port = server.wait_until_ready()
        asyncio.run(run_loads(psutil.Process(server.process.pid), port, arguments.repeat, chat=arguments.chat))


async def run_loads(process: psutil.Process, port: int, repeat: int, *, chat: bool) -> None:
    """Two loads: long streams, and short requests on 64 connections."""
    await load(port, num_clients=8, num_requests=8, num_prompt=32, num_output=16, stream=False, chat=chat)
    for _ in range(repeat):
        for name, shape in (
            ("streams", {"num_clients": 64, "num_requests": 64, "num_prompt": 32, "num_output": 512, "stream": True}),
            (
                "requests",
                {"num_clients": 64, "num_requests": 1280, "num_prompt": 32, "num_output": 16, "stream": False},
            ),
        ):
            before, began = cpu_seconds(process), time.monotonic()
            await load(port, chat=chat, **shape)
            spent, wall = cpu_seconds(process) - before, time.monotonic() - began
            report(name, shape, spent, wall)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def report(name: str, shape: dict[str, Any], spent: float, wall: float) -> None:
    num_tokens = shape["num_requests"] * shape["num_output"]
    print(
        json.dumps(
            {
                "load": name,
                **shape,
                "cpu_us_per_token": round(1e6 * spent / num_tokens, 1),
                "cpu_ms_per_request": round(1e3 * spent / shape["num_requests"], 3),
                "tokens_per_s": round(num_tokens / wall),
            }
        ),
        flush=True,
    )


async def load(
    port: int, *, num_clients: int, num_requests: int, num_prompt: int, num_output: int, stream: bool, chat: bool
) -> None:
    """So many requests, shared by so many connections."""
    body: dict[str, Any] = {"model": "mock", "max_tokens": num_output, "ignore_eos": True, "stream": stream}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    body |= {"messages": [{"role": "user", "content": "a " * num_prompt}]} if chat else {"prompt": "a " * num_prompt}
    del body["model"]
    if chat:
        body["model"] = ""
    data = json.dumps(body).encode()
    request = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
    each = num_requests // num_clients
    await asyncio.gather(*(client(port, request, each, stream=stream) for _ in range(num_clients)))


async def client(port: int, request: bytes, number: int, *, stream: bool) -> None:
    """Send ``number`` requests, one after the other, and read their answers to the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    for _ in range(number):
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(head.decode())
        if stream:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            length = re.search(rb"content-length: (\d+)", head)
            await reader.readexactly(int(length[1]) if length else 0)
    writer.close()


if __name__ == "__main__":
    main()
