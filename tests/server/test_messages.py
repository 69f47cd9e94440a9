"""/v1/messages, raw and through Anthropic's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.server.conftest import MODEL, RunningServer

HELLO: list[Any] = [{"role": "user", "content": "A"}]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_a_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(model=MODEL, max_tokens=100, messages=HELLO, extra_body={"temperature": 0})
    assert message.content[0].type == "text" and message.content[0].text == "BCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert (message.stop_reason, message.usage.input_tokens, message.usage.output_tokens) == ("end_turn", 1, 26)


def test_a_message_that_is_cut_and_one_that_meets_a_stop(client: anthropic.Anthropic) -> None:  # SS05
    cut = client.messages.create(model=MODEL, max_tokens=2, messages=HELLO)
    assert cut.stop_reason == "max_tokens"
    stopped = client.messages.create(
        model=MODEL, max_tokens=100, messages=HELLO, extra_body={"temperature": 0}, stop_sequences=["GH", "CD", "DE"]
    )
    assert stopped.content[0].type == "text" and stopped.content[0].text == "B"
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "CD")


def test_a_stream_has_its_events_in_order(client: anthropic.Anthropic) -> None:  # OA15
    stream = client.messages.create(
        model=MODEL,
        max_tokens=9,
        messages=[{"role": "user", "content": "w"}],
        stream=True,
        extra_body={"temperature": 0},
    )
    found: list[Any] = list(stream)
    kinds = [event.type for event in found]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert "".join(event.delta.text for event in found[2:-3]) == "xyz"
    assert (found[-2].delta.stop_reason, found[-2].usage.output_tokens) == ("end_turn", 4)


def test_the_client_adds_a_stream_up(client: anthropic.Anthropic) -> None:
    with client.messages.stream(model=MODEL, max_tokens=100, messages=HELLO, extra_body={"temperature": 0}) as stream:
        assert "".join(stream.text_stream) == "BCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_system_texts_blocks_and_a_begun_answer(client: anthropic.Anthropic, server: RunningServer) -> None:
    messages: list[Any] = [
        {"role": "user", "content": [{"type": "text", "text": "1"}]},
        {"role": "assistant", "content": "a "},
    ]
    system: list[Any] = [{"type": "text", "text": "be brief"}]
    count = client.messages.count_tokens(model=MODEL, messages=messages, system=system)
    assert count.input_tokens == len("be brief" + "1" + "a ")
    message = client.messages.create(model=MODEL, max_tokens=1, messages=messages, system=system)
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) == count.input_tokens


def test_closing_a_stream_ends_the_request(client: anthropic.Anthropic, server: RunningServer) -> None:
    stream = client.messages.create(
        model=MODEL, max_tokens=1000, messages=HELLO, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert server.becomes_idle(5)


def test_errors_are_those_that_the_client_knows(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(model="nope", max_tokens=1, messages=HELLO)
    with pytest.raises(anthropic.BadRequestError) as wrong:
        client.messages.create(model=MODEL, max_tokens=1, messages=HELLO, extra_body={"temperature": 9})
    assert wrong.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "temperature must be between 0 and 2, got 9.0."},
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": None},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        {"messages": [{"role": "user", "content": []}]},
        {"system": 5},
        {"tools": [{"name": "f", "input_schema": {}}]},
        {"stop_sequences": [""]},
        {"stop_sequences": "a"},
    ],
)
def test_what_cannot_be_done_is_said_clearly(server: RunningServer, fields: dict[str, Any]) -> None:
    body = {"model": MODEL, "max_tokens": 2, "messages": HELLO, **fields}
    answer = server.client.post("/v1/messages", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["type"] == "error" and answer.json()["error"]["type"] == "invalid_request_error"
    assert server.is_alive()


def test_a_stream_that_fails_says_so(server: RunningServer) -> None:
    body = {"model": MODEL, "max_tokens": 1000, "messages": HELLO, "stream": True, "ignore_eos": True}
    text = server.client.post("/v1/messages", json={**body, "request_timeout": 0.05}).text
    *_, last = text.strip().split("\n\n")
    kind, data = last.split("\n")
    assert kind == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "timeout_error"
