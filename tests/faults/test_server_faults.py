"""A server is signalled, killed and left by its clients, in every phase of its life."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests import waiting
from tests.faults.planted_worker import STEPS_FOLDER
from tests.server.conftest import RunningServer
from tests.succ import successor

# The promise is 5 s on a machine that does nothing else.
END_TIMEOUT_S = 20.0
soon = partial(waiting.soon, seconds=END_TIMEOUT_S)
SLOW = ("--worker-cls", "tests.faults.planted_worker:SlowWorker", "--num-threads", "1")
SLOW_TO_WARM_UP = ("--worker-cls", "tests.faults.planted_worker:SlowToWarmUpWorker")
MOCK = ("--load-format", "mock", "--plugins", "")
NUM_TOKENS = 300


def whole_answer(prompt: str) -> str:
    """What the model that counts says to one character; special tokens have no text."""
    token_ids = [ord(prompt)]
    for _ in range(NUM_TOKENS):
        token_ids.append(successor(token_ids[-1]))
    return "".join(chr(token_id) for token_id in token_ids[1:] if token_id < 256)


@pytest.fixture
def start(succ: Path, tmp_path: Path) -> Iterator[Callable[..., RunningServer]]:
    servers: list[RunningServer] = []

    def start(*options: str, model: Path = succ) -> RunningServer:
        servers.append(RunningServer(model, tmp_path / f"log-{len(servers)}", *options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def tree(server: RunningServer) -> list[psutil.Process]:
    front = psutil.Process(server.process.pid)
    return [front, *front.children(recursive=True)]


def is_gone(processes: list[psutil.Process]) -> bool:
    return not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


def core_of(server: RunningServer) -> psutil.Process:
    [core] = [each for each in tree(server) if "octavo.engine.core_proc" in each.cmdline()]
    return core


def health(server: RunningServer) -> tuple[int, str]:
    answer = server.client.get("/health")
    return answer.status_code, answer.json()["status"]


class Stream(threading.Thread):
    """A client that reads a long answer. ``text`` is what it has so far, ``finish_reason`` how it ended."""

    def __init__(self, server: RunningServer, prompt: str = "A", num_tokens: int = NUM_TOKENS) -> None:
        super().__init__(daemon=True)
        self.text = ""
        self.finish_reason: str | None = None
        self.error: Any = None
        self._url = f"{server.url}/v1/completions"
        self._body = {
            "prompt": prompt,
            "max_tokens": num_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
        }
        self.start()
        assert soon(lambda: len(self.text) > 5 or self.error is not None, seconds=60), "no token came"

    def run(self) -> None:
        try:
            with httpx.stream("POST", self._url, json=self._body, timeout=60) as answer:
                for line in answer.iter_lines():
                    self._take(line.removeprefix("data: "))
        except httpx.HTTPError as error:
            self.error = error

    def _take(self, data: str) -> None:
        if not data or data == "[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            self.error = event["error"]
            return
        for choice in event["choices"]:
            self.text += choice["text"]
            self.finish_reason = choice["finish_reason"] or self.finish_reason


def wait_for_phase(server: RunningServer, phase: str) -> None:
    if phase == "loading":
        assert soon(lambda: len(tree(server)) > 1, seconds=60)
    if phase == "warm-up":
        assert soon(lambda: "warming up" in server.log.read_text(), seconds=60)
    if phase in ("ready", "streaming"):
        server.wait_until_ready()
    if phase == "streaming":
        for prompt in "ABC":
            Stream(server, prompt)


@pytest.mark.parametrize(
    ("phase", "number"),
    [
        ("listening", signal.SIGTERM),
        ("loading", signal.SIGINT),
        ("warm-up", signal.SIGTERM),
        ("ready", signal.SIGINT),
        ("streaming", signal.SIGTERM),
    ],
)
def test_one_signal_ends_the_whole_tree(start: Callable[..., RunningServer], phase: str, number: int) -> None:
    server = start(*(SLOW_TO_WARM_UP if phase == "warm-up" else SLOW))
    wait_for_phase(server, phase)
    processes = tree(server)
    server.process.send_signal(number)
    assert server.process.wait(END_TIMEOUT_S) == 0, server.log.read_text()
    assert soon(lambda: is_gone(processes))
    assert "Traceback" not in server.log.read_text()


def test_answers_end_in_peace_when_there_is_time_and_new_ones_are_refused(start: Callable[..., RunningServer]) -> None:
    """Case CO04."""
    server = start(*SLOW, "--shutdown-timeout", "120")
    server.wait_until_ready()
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    assert soon(lambda: health(server) == (503, "stopping"))
    assert server.client.get("/metrics").status_code == 200
    assert server.complete().status_code == 503
    stream.join(120)
    assert (stream.text, stream.finish_reason, stream.error) == (whole_answer("A"), "length", None)
    assert server.process.wait(END_TIMEOUT_S) == 0


def test_answers_that_get_no_time_end_with_an_error(start: Callable[..., RunningServer]) -> None:
    server = start(*SLOW)
    server.wait_until_ready()
    stream = Stream(server)
    with ThreadPoolExecutor(1) as pool:
        whole = pool.submit(server.complete, max_tokens=900, ignore_eos=True)
        assert soon(lambda: server.metric("vllm:num_requests_running") == 2)
        server.process.send_signal(signal.SIGTERM)
        assert whole.result(60).status_code == 503
    assert server.process.wait(END_TIMEOUT_S) == 0
    stream.join(60)
    assert stream.error["type"] == "server_error" and stream.finish_reason is None
    assert "Traceback" not in server.log.read_text()


def test_a_signal_to_every_process_at_once_lets_answers_end_too(start: Callable[..., RunningServer]) -> None:
    """As systemd sends it."""
    server = start(*SLOW, "--shutdown-timeout", "120")
    server.wait_until_ready()
    stream = Stream(server)
    os.killpg(server.process.pid, signal.SIGTERM)
    stream.join(120)
    assert (stream.text, stream.finish_reason, stream.error) == (whole_answer("A"), "length", None)
    assert server.process.wait(END_TIMEOUT_S) == 0
    assert "Starting the engine core again" not in server.log.read_text()


def test_a_second_signal_ends_it_at_once(start: Callable[..., RunningServer]) -> None:
    server = start(*SLOW, "--shutdown-timeout", "600")
    server.wait_until_ready()
    stream = Stream(server)
    server.process.send_signal(signal.SIGTERM)
    assert soon(lambda: server.client.get("/health").status_code == 503)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(END_TIMEOUT_S) == 0
    stream.join(60)
    assert stream.finish_reason != "length"


def test_streams_go_on_over_the_death_of_the_core_and_health_tells(start: Callable[..., RunningServer]) -> None:
    """Case CO01."""
    server = start(*SLOW)
    server.wait_until_ready()
    streams = {prompt: Stream(server, prompt) for prompt in "ABC"}
    os.kill(core_of(server).pid, signal.SIGKILL)
    assert soon(lambda: health(server) == (503, "recovering"))
    assert server.client.get("/live").status_code == 200
    for prompt, stream in streams.items():
        stream.join(120)
        assert (stream.text, stream.finish_reason, stream.error) == (whole_answer(prompt), "length", None)
    assert server.client.get("/health").status_code == 200
    assert (server.metric("octavo:engine_restarts_total"), server.metric("octavo:engine_ready")) == (1, 1)
    assert server.metric("vllm:generation_tokens_total") == 3 * NUM_TOKENS
    assert server.metric("vllm:prompt_tokens_total") == 3
    assert server.becomes_idle()
    assert server.is_alive()


def test_without_restarts_the_death_of_the_core_ends_the_server_with_1(start: Callable[..., RunningServer]) -> None:
    """Case CO01, the classic behaviour."""
    server = start(*SLOW, "--on-engine-death", "exit")
    server.wait_until_ready()
    stream = Stream(server)
    os.kill(core_of(server).pid, signal.SIGKILL)
    assert server.process.wait(END_TIMEOUT_S) == 1
    stream.join(60)
    assert stream.error is not None and stream.finish_reason is None
    assert "SIGKILL" in server.log.read_text()


def test_a_core_that_stands_still_is_told_by_health_and_its_stream_goes_on(
    start: Callable[..., RunningServer],
) -> None:
    server = start(*SLOW, "--engine-stuck-timeout", "2")
    server.wait_until_ready()
    stream = Stream(server)
    core_of(server).suspend()
    assert soon(lambda: health(server) == (503, "recovering"))
    assert server.client.get("/live").status_code == 200
    assert server.client.get("/metrics").status_code == 200
    stream.join(120)
    assert (stream.text, stream.finish_reason, stream.error) == (whole_answer("A"), "length", None)
    assert server.client.get("/health").status_code == 200
    assert "made no progress" in server.log.read_text()


def test_when_no_other_core_can_be_started_the_server_ends_with_1(
    start: Callable[..., RunningServer], succ: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(succ, tmp_path / "model")
    server = start(*MOCK, "--max-engine-restarts", "2", model=model)
    server.wait_until_ready()
    processes = tree(server)
    shutil.rmtree(model)
    os.kill(core_of(server).pid, signal.SIGKILL)
    assert soon(lambda: health(server) == (503, "recovering"))
    assert server.client.get("/live").status_code == 200
    assert server.process.wait(60) == 1
    assert soon(lambda: is_gone(processes))
    assert "SIGKILL" in server.log.read_text() and str(model) in server.log.read_text()


@pytest.mark.parametrize("phase", ["loading", "ready"])
def test_a_front_end_that_is_killed_before_its_first_request_leaves_no_process(
    start: Callable[..., RunningServer], phase: str
) -> None:
    """Case CO02."""
    server = start(*SLOW)
    wait_for_phase(server, phase)
    processes = tree(server)
    server.process.kill()
    assert soon(lambda: is_gone(processes))


def test_a_killed_front_end_leaves_no_process_and_the_next_starts(start: Callable[..., RunningServer]) -> None:
    """Case CO02."""
    server = start(*SLOW)
    wait_for_phase(server, "streaming")
    processes = tree(server)
    server.process.kill()
    assert soon(lambda: is_gone(processes))
    port = re.search(r":(\d+)$", server.url)
    assert port is not None
    successor = start(*SLOW, "--port", port[1])
    successor.wait_until_ready()
    assert successor.is_alive()


def test_clients_that_go_away_give_back_their_blocks(start: Callable[..., RunningServer]) -> None:
    """Case OA08."""
    server = start(*SLOW)
    server.wait_until_ready()
    body = {"prompt": "A", "max_tokens": 900, "ignore_eos": True, "stream": True}
    for _ in range(3):
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer,
        ):
            pieces = answer.iter_bytes()  # kept: the stream ends with its iterator
            next(pieces)
            assert soon(lambda: server.metric("vllm:num_requests_running") == 1)
    assert server.becomes_idle(2.0)
    page = server.client.get("/metrics").text
    ended = re.findall(r'request_success_total{[^}]*finished_reason="(\w+)"[^}]*} (\S+)', page)
    assert dict(ended) == {"abort": "3.0"}


def test_no_step_is_begun_for_a_client_that_has_gone(
    start: Callable[..., RunningServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case OA08, counted in steps."""
    monkeypatch.setenv(STEPS_FOLDER, str(tmp_path))
    steps, permits = tmp_path / "steps", tmp_path / "permits"
    permits.write_bytes(b"." * 4)
    worker = ("--worker-cls", "tests.faults.planted_worker:SteppedWorker", "--num-threads", "1", "--max-burst-ms", "0")
    server = start(*worker)
    server.wait_until_ready()
    body = {"prompt": "A", "n": 2, "max_tokens": 900, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=60) as answer:
        next(pieces := answer.iter_bytes())  # kept: the stream ends with its iterator
        assert soon(lambda: steps.exists() and len(steps.read_text().splitlines()) == 5), "the fifth step waits"
    del pieces
    assert soon(lambda: server.client.get("/load").json() == {"server_load": 0})
    permits.write_bytes(b"." * 1000)
    assert server.becomes_idle()
    assert len(steps.read_text().splitlines()) <= 6
    assert server.is_alive()


def test_truncated_weights_end_the_server_with_1_and_their_name(
    start: Callable[..., RunningServer], succ: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in succ.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    weights = broken / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1000)
    server = start(model=broken)
    assert server.process.wait(60) == 1
    assert "model.safetensors" in server.log.read_text()
