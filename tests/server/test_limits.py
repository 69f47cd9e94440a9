"""Clients that wait, are many, are slow: a server without a model, whose core is stopped where time matters."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.conftest import RunningServer, serving
from tests.server.test_completions import events
from tests.waiting import soon

COMPLETIONS = "/v1/completions"
KEEP_ALIVE_S, REQUEST_TIMEOUT_S = 0.1, 1.0
LIMITS = (
    "--load-format", "mock", "--dev-mode", "--disable-access-log",
    "--request-timeout", str(REQUEST_TIMEOUT_S), "--sse-keep-alive-interval", str(KEEP_ALIVE_S),
    "--max-num-queued-reqs", "2", "--max-num-queued-tokens", "100",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(succ: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with serving(succ, tmp_path_factory.mktemp("limits") / "log", *LIMITS) as server:
        yield server


@contextmanager
def stopped_core(server: RunningServer) -> Iterator[None]:
    """Within it no token comes."""
    children = psutil.Process(server.process.pid).children()
    (core,) = [each for each in children if "octavo.engine.core_proc" in each.cmdline()]
    core.suspend()
    try:
        yield
    finally:
        core.resume()


def answers(server: RunningServer) -> bool:
    """Whether a request gets its tokens; what the server makes up may be the end of sequence, so that is ignored."""
    return server.complete("A", max_tokens=3, ignore_eos=True).json()["usage"]["completion_tokens"] == 3


def test_a_server_without_a_model_makes_up_tokens(server: RunningServer) -> None:
    found = [server.complete("A", max_tokens=50, ignore_eos=True, n=n, temperature=1).json() for n in (1, 3)]
    assert [each["usage"]["completion_tokens"] for each in found] == [50, 150]
    assert len({choice["text"] for each in found for choice in each["choices"]}) == 4
    front = psutil.Process(server.process.pid)
    for process in (front, *front.children()):
        assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()


def test_the_time_limit_of_the_server_holds_for_all_and_may_only_be_shortened(server: RunningServer) -> None:
    with stopped_core(server):
        for fields, seconds in (({}, REQUEST_TIMEOUT_S), ({"request_timeout": 60}, REQUEST_TIMEOUT_S)):
            began = time.monotonic()
            late = server.complete("A", **fields)
            assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
            assert time.monotonic() - began >= seconds
        assert f"within {0.2:g} s" in server.complete("A", request_timeout=0.2).json()["error"]["message"]
    assert soon(lambda: answers(server), 10)


def test_who_would_wait_too_long_is_told_to_come_again(server: RunningServer) -> None:
    with stopped_core(server), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(server.complete, "A") for _ in range(2)]
        assert soon(lambda: server.client.get("/load").json()["server_load"] == 2, 10)
        refused = [
            server.client.post(path, json={"model": "succ", "max_tokens": 1, **fields})
            for path, fields in (
                (COMPLETIONS, {"prompt": "A"}),
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "stream": True}),
                ("/v1/responses", {"input": "A"}),
            )
        ]
        for answer in refused:
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded"), answer.text
            assert int(answer.headers["retry-after"]) >= 1 and "max_num_queued_reqs" in answer.text
        assert {each.result(30).status_code for each in waiting} == {504}
    assert soon(lambda: answers(server), 10)


def test_prompt_tokens_that_wait_are_limited_too(server: RunningServer) -> None:
    with stopped_core(server), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(server.complete, "A" * 80)
        assert soon(lambda: server.client.get("/load").json()["server_load"] == 1, 10)
        assert "max_num_queued_tokens" in server.complete("A" * 30).json()["error"]["message"]
        assert waiting.result(30).status_code == 504
    assert soon(lambda: answers(server), 10)


def test_a_silent_stream_says_that_it_lives(server: RunningServer) -> None:
    with stopped_core(server):
        text = server.client.post(COMPLETIONS, json={"prompt": "A", "stream": True}).text
    frames = text.strip().split("\n\n")
    assert frames.count(": keep-alive") >= 3
    assert "timeout" in frames[-2] and frames[-1] == "data: [DONE]"
    assert soon(lambda: answers(server), 10)


def connected(server: RunningServer, *, receive_bytes: int | None = None) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.socket()
    if receive_bytes is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    connection.settimeout(30)
    connection.connect((host, int(port)))
    return connection


def test_nobody_notices_500_connections_that_do_nothing(server: RunningServer) -> None:
    process = psutil.Process(server.process.pid)
    before = process.num_fds()
    connections = [connected(server) for _ in range(500)]
    try:
        assert soon(lambda: process.num_fds() >= before + 500, 10)
        assert answers(server) and server.client.get("/health").status_code == 200
        spent = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        assert sum(process.cpu_times()[:2]) - spent < 0.25
    finally:
        for connection in connections:
            connection.close()
    assert soon(lambda: process.num_fds() <= before + 8, 10)
    assert answers(server)


def test_a_client_that_reads_slowly_gets_everything_and_delays_nobody(server: RunningServer) -> None:
    num_tokens = 1000
    body = {"prompt": "A", "max_tokens": num_tokens, "ignore_eos": True, "stream": True, "return_token_ids": True}
    data = json.dumps({**body, "logprobs": 20}).encode()
    with connected(server, receive_bytes=4096) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(data)}\r\n\r\n"
        before = server.metric("vllm:request_success_total")
        connection.sendall(head.encode() + data)
        assert soon(lambda: server.metric("vllm:request_success_total") > before, 20), "the engine does not wait for it"
        assert answers(server)
        received = bytearray()
        time.sleep(REQUEST_TIMEOUT_S)  # the engine's limit, not the reader's
        while part := connection.recv(65536):
            received += part
    frames = [line[6:] for line in received.replace(b"\r\n", b"\n").split(b"\n") if line.startswith(b"data: {")]
    found = [json.loads(frame)["choices"][0]["token_ids"] for frame in frames]
    assert sum(map(len, found)) == num_tokens > len(found)


def test_development_routes_do_what_they_say(server: RunningServer) -> None:
    def post(path: str, body: Any = None) -> Any:
        answer = server.client.post(path, json=body) if body is not None else server.client.post(path)
        return answer.json() if answer.status_code == 200 else (answer.status_code, answer.json()["error"]["param"])

    prompt = "the same again " * 5
    for _ in range(2):
        cached = server.complete(prompt, max_tokens=1).json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0 and post("/reset_prefix_cache") == {"reset": True}
    usage = server.complete(prompt, max_tokens=1).json()["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0  # PC14
    assert post("/pause") == {"paused": True} and server.client.get("/is_paused").json() == {"is_paused": True}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(answers, server)
        assert soon(lambda: server.client.get("/load").json()["server_load"] == 1, 10)
        assert not held.done() and post("/resume") == {"paused": False}
        assert held.result(10)
    assert post("/pause", {"mode": "forever"}) == (400, "mode")
    assert post("/collective_rpc", {"method": "nothing"}) == (400, "method")
    assert post("/collective_rpc", {"method": "nothing", "args": [2**70]}) == (400, "args")
    assert server.client.get("/server_info").json()["max_model_len"] > 0


def test_probes_answer_in_both_ways(server: RunningServer) -> None:
    for answer in (server.client.get("/ping"), server.client.post("/ping"), server.client.head("/health")):
        assert answer.status_code == 200
    assert set(server.client.get("/version").json()) == {"version"}
    assert events(server, COMPLETIONS, {"prompt": "A", "max_tokens": 2})
