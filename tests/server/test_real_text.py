"""The server on a real model: text and calls that it is made to write, and one long prompt among streams."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.server.conftest import CITY, MODEL, RunningServer, serving
from tests.waiting import soon

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
ROOM = ("--max-model-len", "4096", "--kv-cache-memory-bytes", "256MiB")
TEMPLATE = (
    "{% if tools %}<|im_start|>system\nTools: {{ tools | tojson }}\n"
    'Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>\n{% endif %}'
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "city": {"type": "string", "maxLength": 20}},
    "required": ["name", "city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(real_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("real")
    (folder / "template.jinja").write_text(TEMPLATE)
    with serving(real_model, folder / "log", *ROOM, "--chat-template", str(folder / "template.jinja")) as server:
        yield server


def written(server: RunningServer, text: str, **fields: Any) -> str:
    """What comes of a model that writes ``text``: the same in one piece and as a stream."""
    body = {"prompt": "Say:", "max_tokens": 100, "structured_outputs": {"choice": [text]}, **fields}
    whole = server.client.post(COMPLETIONS, json=body).json()["choices"][0]["text"]
    assert "".join(event["choices"][0]["text"] for event in streamed(server, COMPLETIONS, body)) == whole
    return str(whole)


def streamed(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    lines = server.client.post(path, json={**body, "stream": True}).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_spaces_at_token_borders_are_kept(server: RunningServer) -> None:  # DT03
    text = " one two  three\n\n four"
    assert written(server, text) == text


def test_a_stop_inside_a_token_cuts_there(server: RunningServer) -> None:  # SS02
    assert written(server, "1 STOPPED 2", stop=["STO"]) == "1 "


def test_a_call_that_must_come_parses_and_validates_whatever_the_seed(server: RunningServer) -> None:  # TC02
    tool = {"type": "function", "function": {"name": "weather", "parameters": CITY}}

    def call(seed: int) -> dict[str, Any]:
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "Is it warm in Zürich?"}],
            "tools": [tool],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "temperature": 1,
            "seed": seed,
        }
        (choice,) = server.client.post(CHAT, json=body).json()["choices"]
        assert choice["finish_reason"] == "tool_calls"
        (call,) = choice["message"]["tool_calls"]
        return dict(call["function"])

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(call, range(8)):
            assert found["name"] == "weather"
            jsonschema.validate(json.loads(found["arguments"]), CITY)


def test_streams_go_on_while_a_long_prompt_is_read(server: RunningServer) -> None:  # DT08
    moments: list[float] = []

    def follow() -> None:
        body = {"prompt": "Once", "max_tokens": 4000, "ignore_eos": True, "stream": True, "temperature": 0}
        with server.client.stream("POST", COMPLETIONS, json=body) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    moments.append(time.monotonic())
                if is_over:
                    return

    is_over: list[bool] = []
    ids = [7 + number % 900 for number in range(1600)]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow)
        assert soon(lambda: bool(moments), seconds=60)
        began = time.monotonic()
        answer = server.client.post(COMPLETIONS, json={"prompt": ids, "max_tokens": 1, "temperature": 0}, timeout=120)
        ended = time.monotonic()
        is_over.append(True)
        following.result(60)
    assert answer.json()["usage"]["prompt_tokens"] == len(ids)
    assert sum(began < moment < ended for moment in moments) >= 2
    assert server.becomes_idle()


def test_speculation_changes_no_answer_that_is_held_to_a_schema(
    server: RunningServer, real_model: str, tmp_path: Path
) -> None:  # SO10
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "A person from Rome as JSON, twice the same: "}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}},
        "temperature": 0,
        "max_tokens": 100,
    }
    (expected,) = server.client.post(CHAT, json=body).json()["choices"]
    template = str(server.log.parent / "template.jinja")
    options = ("--speculative-method", "ngram", "--no-adaptive-speculation")
    with serving(real_model, tmp_path / "log", *ROOM, *options, "--chat-template", template) as other:
        (found,) = other.client.post(CHAT, json=body).json()["choices"]
        assert found["message"]["content"] == expected["message"]["content"]
        jsonschema.validate(json.loads(found["message"]["content"]), PERSON)
        assert other.metric("vllm:spec_decode_num_draft_tokens_total") > 0
        deltas = [event["choices"][0]["delta"].get("content") or "" for event in streamed(other, CHAT, body)]
        assert "".join(deltas) == expected["message"]["content"]
