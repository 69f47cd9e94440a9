"""What clients get wrong, or do on purpose: a clear answer, and the server goes on."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.conftest import MODEL, RunningServer, serving

COMPLETIONS = "/v1/completions"
ERROR_KEYS = {"message", "type", "param", "code"}


def memory_of(server: RunningServer) -> int:
    """Resident bytes of the front-end process."""
    return int(psutil.Process(server.process.pid).memory_info().rss)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": [10**6]}, "prompt"),  # SA10
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [320]}, "prompt"),
        ({"prompt": [2**40]}, "prompt"),
        ({"prompt": [1.5]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": [[65], [400]]}, "prompt"),
        ({"prompt": ["a", 5]}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": {"a": 1}}, "prompt"),
        ({"prompt": "A" * 2000}, "prompt"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),  # SS07
        ({"stop_token_ids": [320]}, "stop_token_ids"),
        ({"stop_token_ids": [10**12]}, "stop_token_ids"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),  # SA08
        ({"logit_bias": {"320": 1}}, "logit_bias"),
        ({"logit_bias": {"abc": 1}}, "logit_bias"),
        ({"logit_bias": {"66": 101}}, "logit_bias"),
        ({"logit_bias": {"66": "x"}}, "logit_bias"),
        ({"logit_bias": {str(key): 1 for key in range(1025)}}, "logit_bias"),
        ({"allowed_token_ids": [66], "bad_words": ["B"]}, "allowed_token_ids"),
        ({"allowed_token_ids": [257, 258, 300], "min_tokens": 1}, "allowed_token_ids"),
        ({"vllm_xargs": {"a": 1}}, "vllm_xargs"),
        ({"bad_words": [""]}, "bad_words"),  # SA13
        ({"bad_words": ["a"] * 100_000}, "bad_words"),
        ({"logprobs": 10**9}, "logprobs"),  # SA22
        ({"logprobs": -1}, "logprobs"),
        ({"prompt_logprobs": 10**6}, "prompt_logprobs"),
        ({"seed": 2**64}, "seed"),  # SA23
        ({"seed": "x"}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": -1}, "max_tokens"),  # OA02
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"n": 10**9}, "n"),  # OA04
        ({"n": 0}, "n"),
        ({"n": -1}, "n"),
        ({"n": 1000, "prompt": ["a", "b"], "temperature": 1}, "n"),
        ({"prompt": ["a"] * 100_000}, "prompt"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),  # OA13
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncation_side": "up"}, "truncation_side"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 100}, "stop"),
        ({"stop": "a" * 10_000}, "stop"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"priority": 2**40}, "priority"),
        ({"request_timeout": -1}, "request_timeout"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"model": "nope"}, "model"),
    ],
)
def test_a_wrong_value_is_named_and_harms_nobody(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    began = time.monotonic()
    answer = server.client.post(COMPLETIONS, json={"prompt": "A", "max_tokens": 2, "temperature": 0, **fields})
    assert time.monotonic() - began < 30
    assert answer.status_code == (404 if param == "model" else 400), answer.text
    error = answer.json()["error"]
    assert error.keys() == ERROR_KEYS and error["param"] == param
    assert error["code"] is None or isinstance(error["code"], str)
    assert server.is_alive()


@pytest.mark.parametrize(
    ("schema", "named"),
    [
        ({"type": "array", "items": 5}, "object or boolean"),
        ({"type": "bogus"}, "bogus"),
        ({"type": "object", "properties": []}, "properties"),
        ({"$ref": "#/nope"}, "/nope"),
        (7, "got `int`"),
        ("7", "object"),
        ("{", "line 1"),
        ([], "got `array`"),
    ],
)
def test_a_malformed_schema_is_refused_and_harms_nobody(server: RunningServer, schema: Any, named: str) -> None:  # SO03
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    message = {"role": "user", "content": "A"}
    tool = {"type": "json_schema", "name": "a", "schema": schema}
    requests = [
        (COMPLETIONS, {"prompt": "A", "structured_outputs": {"json": schema}}),
        (COMPLETIONS, {"prompt": "A", "response_format": form}),
        ("/v1/chat/completions", {"messages": [message], "response_format": form}),
        ("/v1/responses", {"input": "A", "text": {"format": tool}}),
    ]
    for (path, fields), stream in itertools.product(requests, (False, True)):
        answer = server.client.post(path, json={"model": MODEL, "stream": stream, **fields})
        assert answer.status_code == 400, (path, answer.text)  # of a stream, too: it is refused before it is queued
        error = answer.json()["error"]
        assert error.keys() == ERROR_KEYS and named in error["message"], (path, error)
    assert server.is_alive()


def test_codes_that_clients_branch_on(server: RunningServer) -> None:
    long = server.complete("A" * 1500).json()["error"]
    assert long["code"] == "context_length_exceeded"
    assert long["message"].startswith("This model's maximum context length is 1024 tokens.")
    assert server.complete("A", model="nope").json()["error"]["code"] == "model_not_found"


def test_the_one_of_several_prompts_that_is_wrong_is_named(server: RunningServer) -> None:
    for prompt in (["A", ""], [[65], [400]], ["A", "A" * 2000]):
        error = server.complete(prompt).json()["error"]
        assert error["message"].endswith("(prompt[1])") and error["param"] == "prompt"


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A" * 2000}]}, "messages"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/responses", {"input": ""}, "input"),
        ("/v1/responses", {"input": [{}]}, "input"),
        ("/v1/responses", {"max_output_tokens": 2**40}, "max_output_tokens"),
        ("/tokenize", {"prompt": "A", "messages": []}, "messages"),
        ("/v1/embeddings", {"input": "A"}, "model"),
    ],
)
def test_param_is_a_field_of_the_request(server: RunningServer, path: str, fields: dict[str, Any], param: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "A"}], "input": "A", **fields}
    answer = server.client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/tokenize"])
def test_what_is_nested_deeply_is_taken_or_refused(server: RunningServer, path: str) -> None:
    for depth in (100, 600, 900, 5000):
        deep = '{"a":' * depth + "1" + "}" * depth
        message = f'[{{"role": "user", "content": "A", "more": {deep}}}]'
        field = "input" if path == "/v1/responses" else "messages"
        body = f'{{"model": "{MODEL}", "max_tokens": 1, "{field}": {message}, "metadata": {{"a": {deep}}}}}'
        answer = server.client.post(path, content=body)
        assert answer.status_code in (200, 400), answer.text
    assert server.is_alive()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"", 400),
        (b"[]", 400),
        (b"7", 400),
        (b"{}", 400),
        (b"\xff\xfe", 400),
        (b'{"prompt": "a", "max_tokens": 1e999}', 400),
        (b'{"prompt":' + b"[" * 5000 + b"]" * 5000 + b"}", 400),
        (rb'{"prompt": "a\ud83db"}', 400),  # OA11
        (rb'{"prompt": "a", "stop": "\ud83d"}', 400),
        (rb'{"prompt": "a", "user": "\ud83d"}', 400),
    ],
)
def test_broken_json_is_a_bad_request(server: RunningServer, body: bytes, status: int) -> None:  # OA10
    answer = server.client.post(COMPLETIONS, content=body)
    assert answer.status_code == status
    assert answer.json()["error"].keys() == ERROR_KEYS
    assert server.is_alive()


def test_wrong_routes_and_methods_have_error_objects(server: RunningServer) -> None:  # OA10
    for answer, status in ((server.client.get(COMPLETIONS), 405), (server.client.get("/nope"), 404)):
        assert (answer.status_code, answer.json()["error"].keys()) == (status, ERROR_KEYS)
    plain = server.client.post(COMPLETIONS, content=b'{"prompt":"A"}', headers={"content-type": "text/plain"})
    assert plain.status_code == 200


INTEGER_FIELDS = (
    "n", "seed", "max_tokens", "min_tokens", "top_k", "logprobs", "prompt_logprobs", "truncate_prompt_tokens",
    "priority", "temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
    "best_of", "request_timeout",
)  # fmt: skip
ODD_NUMBERS = (-1, 0, 2**31, 2**32, 2**63, 2**64, 1e308, True, "1")


def test_odd_numbers_are_answered_or_refused(server: RunningServer) -> None:  # SE14
    for field in INTEGER_FIELDS:
        for value in ODD_NUMBERS:
            answer = server.client.post(COMPLETIONS, json={"prompt": "Y", "max_tokens": 2, field: value})
            allowed = (200, 400, 504) if field == "request_timeout" else (200, 400)
            assert answer.status_code in allowed, (field, value, answer.text)
            assert "0x" not in answer.text and "Traceback" not in answer.text
    assert server.is_alive()


def test_a_giant_body_is_refused_while_others_are_served(server: RunningServer) -> None:  # OA07
    healthy: list[float] = []
    done = threading.Event()

    def probe() -> None:
        while not done.is_set():
            began = time.monotonic()
            assert server.client.get("/health").status_code == 200
            healthy.append(time.monotonic() - began)

    with ThreadPoolExecutor(1) as pool:
        probing = pool.submit(probe)
        body = json.dumps({"prompt": "a" * 30_000_000}).encode()
        assert server.client.post(COMPLETIONS, content=body).status_code == 413
        within = json.dumps({"prompt": "a" * 10_000_000}).encode()
        assert server.client.post(COMPLETIONS, content=within).status_code == 400
        done.set()
        probing.result()
    assert healthy
    assert server.is_alive()


def test_giant_headers_are_refused(server: RunningServer) -> None:  # OA07
    before = memory_of(server)
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Large: ")
        answer = b""
        with contextlib.suppress(OSError):
            for _ in range(160):
                connection.sendall(b"a" * 65536)
        with contextlib.suppress(OSError):
            answer = connection.recv(4096)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 431 ")
    assert memory_of(server) - before < 20 << 20
    assert server.is_alive()


def test_no_error_body_shows_internals(server: RunningServer) -> None:  # SE11
    values: list[Any] = [None, {}, [[]], [["a"]], ["/etc/passwd", 1], "", -1, 2**64, 1e308, True, [None], {"a": [{}]}]
    fields = ("prompt", "stop", "logit_bias", "structured_outputs", "stream_options", "prompt_embeds", *INTEGER_FIELDS)
    wrong = [{"prompt": "A", "max_tokens": 1, field: value} for field in fields for value in values]
    wrong += [{"prompt": "a", "cache_salt": "/root/secret/file" * 1000}, {"model": "../../etc/passwd", "prompt": "a"}]
    for body in wrong:
        text = server.client.post(COMPLETIONS, json=body).text
        for internal in ("Traceback", "/work/", "octavo/", ".py", "object at 0x"):
            assert internal not in text
    assert server.client.get(f"/v1/models/{MODEL}/../../etc").status_code == 404  # SE12


def disconnected(server: RunningServer, body: dict[str, Any], *, after_bytes: int) -> None:
    """Send a request, read that much of the answer, and go."""
    data = json.dumps(body).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        connection.sendall(head.encode() + data)
        received = 0
        while received < after_bytes:
            received += len(connection.recv(4096))
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("fields", "after_bytes"),
    [
        ({"stream": True}, 1000),
        ({}, 0),
        ({"stream": True, "n": 3, "temperature": 1}, 1000),
        ({"prompt": ["A", "B"], "stream": True}, 1000),
    ],
)
def test_a_client_that_leaves_frees_everything(
    server: RunningServer, fields: dict[str, Any], after_bytes: int
) -> None:  # OA08
    body = {"prompt": "A", "temperature": 0, "max_tokens": 1000, "ignore_eos": True, **fields}
    before = (
        server.metric("vllm:request_success_total") if "request_success" in server.client.get("/metrics").text else 0
    )
    disconnected(server, body, after_bytes=after_bytes)
    assert server.becomes_idle(5)
    assert server.metric("vllm:request_success_total") > before
    assert server.is_alive()


def test_two_requests_with_one_id_have_their_own_answers(server: RunningServer) -> None:  # OA06
    def ask(prompt: str) -> Any:
        body = {"prompt": prompt, "max_tokens": 3, "temperature": 0}
        return server.client.post(COMPLETIONS, json=body, headers={"X-Request-Id": "twin"})

    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(ask, "Aa"))
    assert [answer.json()["choices"][0]["text"] for answer in answers] == ["BCD", "bcd"]
    assert all(answer.headers["x-request-id"] == "twin" for answer in answers)
    assert {answer.json()["id"] for answer in answers} == {"cmpl-twin"}


def test_parallel_tokenising_and_chatting(server: RunningServer) -> None:  # DT09
    def ask(number: int) -> int:
        if number % 2:
            body: dict[str, Any] = {"prompt": "many words " * 20, "truncate_prompt_tokens": 5}
            return server.client.post("/tokenize", json=body).status_code
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A"}], "max_tokens": 2}
        return server.client.post("/v1/chat/completions", json=body).status_code

    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(ask, range(64))) == {200}


@pytest.mark.parametrize(
    ("content", "word"), [("raise", "roles must alternate"), ("divide", "division by zero"), ("undefined", "undefined")]
)
def test_a_template_that_fails_is_a_400_with_its_words(tool_server: RunningServer, content: str, word: str) -> None:
    def ask(_: int) -> Any:
        body = {"model": MODEL, "messages": [{"role": "user", "content": content}]}
        return tool_server.client.post("/v1/chat/completions", json=body)

    with ThreadPoolExecutor(10) as pool:  # TC14
        for answer in pool.map(ask, range(50)):
            assert answer.status_code == 400 and word in answer.json()["error"]["message"], answer.text
    assert tool_server.is_alive()


def test_a_prompt_that_can_never_fit_is_told_so_and_delays_nobody(succ: Path, tmp_path: Path) -> None:  # PC05
    with serving(succ, tmp_path / "log", "--block-size", "16", "--num-gpu-blocks-override", "41") as server:
        answer = server.complete("A" * 900, max_tokens=4)
        assert answer.status_code == 400 and "640" in answer.json()["error"]["message"], answer.text
        assert server.complete("ABCD", max_tokens=1).status_code == 200
        assert server.complete([65] * 639, max_tokens=1, ignore_eos=True).status_code == 200
        assert server.complete([65] * 640, max_tokens=1, ignore_eos=True).status_code == 400
