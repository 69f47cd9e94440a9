"""Put a server under mixed load with aborts for long: memory, descriptors, threads and free blocks must stay flat.

python benchmarks/soak.py [--minutes 20] [--model smollm2-135m] [--clients 16] [--rounds 10]

The time is cut into rounds; after each the load pauses until the server is idle, and what it holds is noted. The first
three rounds fill caches and pools; after that nothing may grow. Exit code 1, and the reason, if something does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
import time
from typing import Any

import httpx
import psutil
from local_server import LocalServer

SMALL_CACHE = ("--max-model-len", "2048", "--kv-cache-memory-bytes", "128MiB")
"""So that all of it has been written to in the warm rounds."""
IDLE_TIMEOUT_S = 60
WARM_ROUNDS = 3
MAX_GROWTH_BYTES = 24 << 20
"""Of a process, between the warm rounds and the end: allocators keep some."""
MAX_MORE_FILES = 4
WORDS = ("the", "of", "and", "to", "in", "that", "is", "was", "for", "on", "are", "with", "as", "his", "they", "at")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    with LocalServer(arguments.model, *SMALL_CACHE, "--disable-access-log") as server:
        url = f"http://127.0.0.1:{server.wait_until_ready()}"
        rounds = asyncio.run(soak(server.process.pid, url, arguments))
    problems = what_grew(rounds)
    print("\n".join(problems) or "flat")
    return 1 if problems else 0


async def soak(pid: int, url: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """What the server held after each round."""
    rounds: list[dict[str, Any]] = []
    seconds = arguments.minutes * 60 / arguments.rounds
    async with httpx.AsyncClient(base_url=url, timeout=120) as client:
        for number in range(arguments.rounds):
            until = time.monotonic() + seconds
            loops = [one_client(client, 1000 * number + seed, until) for seed in range(arguments.clients)]
            counts = await asyncio.gather(*loops)
            rounds.append({"requests": sum(counts), **await held_when_idle(client, pid)})
            print(json.dumps(rounds[-1]), flush=True)
    return rounds


async def one_client(client: httpx.AsyncClient, seed: int, until: float) -> int:
    rng, num_requests = random.Random(seed), 0
    while time.monotonic() < until:
        await one_request(client, rng)
        num_requests += 1
    return num_requests


async def one_request(client: httpx.AsyncClient, rng: random.Random) -> None:
    """A stream, of which one in three is left in its middle."""
    prompt = " ".join(rng.choices(WORDS, k=rng.randint(1, 200)))
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": rng.randint(1, 64),
        "stream": True,
        "n": rng.choice((1, 1, 2)),
    }
    if rng.random() < 0.2:
        body["structured_outputs"] = {"regex": f"[a-z ]{{1,{rng.randint(1, 40)}}}"}
    left_after = rng.randint(1, 20) if rng.random() < 0.34 else None
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        answer.raise_for_status()
        num_lines = 0
        async for _ in answer.aiter_lines():
            num_lines += 1
            if left_after is not None and num_lines > left_after:
                return


async def held_when_idle(client: httpx.AsyncClient, pid: int) -> dict[str, Any]:
    """Memory, descriptors, threads and used blocks of a server that does nothing."""
    deadline = time.monotonic() + IDLE_TIMEOUT_S
    while (busy := await metrics(client)) and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    return {
        "rss": [process.memory_info().rss for process in processes],
        "files": [process.num_fds() for process in processes],
        "threads": [process.num_threads() for process in processes],
        "in_use": busy,
    }


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    """Requests that run or wait, and the share of blocks that they hold, where there are any."""
    page = (await client.get("/metrics")).text
    names = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
    found = {name: float(re.search(rf"^{name}{{.*}} (\S+)$", page, re.MULTILINE)[1]) for name in names}  # type: ignore[index]
    return {name: value for name, value in found.items() if value}


def what_grew(rounds: list[dict[str, Any]]) -> list[str]:
    """What the last round holds more of than the warm ones, in words."""
    warm, last = rounds[: min(WARM_ROUNDS, len(rounds) - 1)], rounds[-1]
    problems = [f"still in use when idle: {last['in_use']}"] if last["in_use"] else []
    for name, most in (("rss", MAX_GROWTH_BYTES), ("files", MAX_MORE_FILES), ("threads", MAX_MORE_FILES)):
        before = [max(values) for values in zip(*(each[name] for each in warm), strict=True)]
        grown = [after - then for after, then in zip(last[name], before, strict=True)]
        problems += [f"process {index}: {name} grew by {more}" for index, more in enumerate(grown) if more > most]
    return problems


if __name__ == "__main__":
    sys.exit(main())
