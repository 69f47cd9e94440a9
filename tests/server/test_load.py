"""Ten seconds of everything at once: right answers, clear refusals, nothing left behind."""

from __future__ import annotations

import itertools
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil

from tests.server.conftest import MODEL, RunningServer
from tests.waiting import soon

SECONDS = 10.0
NUM_CLIENTS = 24
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
HELLO = [{"role": "user", "content": "A"}]


def whole(client: httpx.Client, length: int) -> bool:
    body = {"prompt": "A", "max_tokens": length, "temperature": 0.1, "n": 2}
    choices = client.post("/v1/completions", json=body).json()["choices"]
    return [choice["text"] for choice in choices] == [ALPHABET[1 : length + 1]] * 2


def streamed(client: httpx.Client, length: int) -> bool:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": length, "temperature": 0, "stream": True}
    lines = client.post("/v1/chat/completions", json=body).text.splitlines()
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    return text == ALPHABET[1 : length + 1] and lines[-2:] == ["data: [DONE]", ""]


def message(client: httpx.Client, length: int) -> bool:
    body = {"model": MODEL, "messages": HELLO, "max_tokens": length, "temperature": 0}
    return bool(client.post("/v1/messages", json=body).json()["content"][0]["text"] == ALPHABET[1 : length + 1])


def response(client: httpx.Client, length: int) -> bool:
    body = {"model": MODEL, "input": "A", "max_output_tokens": length, "temperature": 0}
    (item,) = client.post("/v1/responses", json=body).json()["output"]
    return bool(item["content"][0]["text"] == ALPHABET[1 : length + 1])


def held(client: httpx.Client, length: int) -> bool:
    body = {"prompt": "A", "max_tokens": 50, "structured_outputs": {"regex": f"[a-c]{{{length}}}"}}
    return len(client.post("/v1/completions", json=body).json()["choices"][0]["text"]) == length


def refused(client: httpx.Client, length: int) -> bool:
    return client.post("/v1/completions", json={"prompt": "A", "max_tokens": -length}).status_code == 400


def left(client: httpx.Client, length: int) -> bool:
    body = {"prompt": "A", "max_tokens": 900, "ignore_eos": True, "stream": True}
    with client.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_bytes())
    return True


def looked_at(client: httpx.Client, length: int) -> bool:
    statuses = {client.get(path).status_code for path in ("/metrics", "/health", "/load", "/v1/models")}
    return statuses == {200} and client.post("/tokenize", json={"prompt": "A" * length}).json()["count"] == length


KINDS = (whole, streamed, message, response, held, refused, left, looked_at)


def client_loop(server: RunningServer, seed: int, until: float) -> list[Any]:
    """What one client did, each with whether it went well."""
    rng = random.Random(seed)
    done: list[Any] = []
    with httpx.Client(base_url=server.url, timeout=60) as client:
        while time.monotonic() < until:
            kind, length = rng.choice(KINDS), rng.randint(1, 24)
            done.append((kind.__name__, length, kind(client, length)))
    return done


def test_ten_seconds_of_everything_at_once(server: RunningServer) -> None:
    process = psutil.Process(server.process.pid)
    files = process.num_fds()
    until = time.monotonic() + SECONDS
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        loops = [pool.submit(client_loop, server, seed, until) for seed in range(NUM_CLIENTS)]
        done = list(itertools.chain.from_iterable(loop.result(SECONDS + 60) for loop in loops))
    assert [each for each in done if not each[2]] == []
    assert {name for name, _, _ in done} == {kind.__name__ for kind in KINDS}
    assert server.becomes_idle() and server.is_alive()
    assert soon(lambda: process.num_fds() <= files + 8, 10)
