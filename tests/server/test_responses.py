"""/v1/responses, raw and through OpenAI's client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from octavo.server.api_error import ApiError
from octavo.server.openai.compaction import INTRODUCTION, REQUEST, said_by
from octavo.server.openai.response_store import ENTRY_BYTES, ResponseStore
from tests.server.conftest import MODEL, RunningServer


def test_an_answer(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="A", temperature=0)
    assert (answer.output_text, answer.status) == ("BCDEFGHIJKLMNOPQRSTUVWXYZ", "completed")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (1, 26, 27)


def test_an_answer_that_is_cut_is_incomplete(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=MODEL, input="A", temperature=0, max_output_tokens=2)
    assert (answer.output_text, answer.status) == ("BC", "incomplete")
    assert answer.incomplete_details is not None and answer.incomplete_details.reason == "max_output_tokens"


def test_a_stream_has_its_events_in_order(client: openai.OpenAI) -> None:
    stream = client.responses.create(model=MODEL, input="w", temperature=0, stream=True)
    found: list[Any] = list(stream)
    kinds = [event.type for event in found]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in found] == list(range(len(found)))
    assert "".join(event.delta for event in found if event.type == "response.output_text.delta") == "xyz"
    assert found[-1].response.output_text == "xyz"


def test_a_conversation_goes_on_from_what_was_kept(client: openai.OpenAI) -> None:
    first = client.responses.create(model=MODEL, input="a", temperature=0, max_output_tokens=2)
    second = client.responses.create(
        model=MODEL, input="X", previous_response_id=first.id, instructions="be brief", temperature=0
    )
    assert second.output_text == "YZ"
    assert second.usage is not None and second.usage.input_tokens == len("be brief" + "a" + "bc" + "X")
    assert client.responses.retrieve(first.id).output_text == "bc"
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_what_is_not_kept_is_not_found(client: openai.OpenAI) -> None:  # OA14
    unkept = client.responses.create(model=MODEL, input="A", store=False, max_output_tokens=1)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=MODEL, input="A", previous_response_id="resp_unknown")


def test_items_of_every_text_form_are_read(server: RunningServer) -> None:
    items = [
        {"role": "developer", "content": "a"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
        {"type": "reasoning", "id": "r", "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "c", "annotations": []}]},
    ]
    answer = server.client.post("/v1/responses", json={"model": MODEL, "input": items, "max_output_tokens": 2})
    assert answer.json()["output"][0]["content"][0]["text"] == "de"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [1]}, "input"),
        ({"input": [{"type": "function_call_output", "call_id": "1"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools"),
        ({"background": True}, "background"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"truncation": "middle"}, "truncation"),
        ({"text": {"format": {"type": "nope"}}}, "text"),
        ({"temperature": 5}, "temperature"),
        ({"stop": ["a"] * 100}, "stop"),
        ({"model": None}, "model"),
    ],
)
def test_what_cannot_be_done_is_said_clearly(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = server.client.post("/v1/responses", json={"model": MODEL, "input": "A", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert server.is_alive()


CONVERSATION: list[Any] = [
    {"role": "developer", "content": "be brief"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Launch on Tuesday?"}]},
    {"type": "function_call", "call_id": "1", "name": "day", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "free"},
    {"type": "message", "role": "assistant", "content": "Yes."},
]


def test_a_conversation_is_made_shorter_and_goes_on_from_its_summary(client: openai.OpenAI) -> None:
    summary = "/0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ"  # what the model says after a full stop
    compacted = client.responses.compact(model=MODEL, input=CONVERSATION)
    *kept, compaction = [item.to_dict(warnings=False) for item in compacted.output]
    assert [(item["role"], item["content"][0]["text"]) for item in kept] == [
        ("developer", "be brief"),
        ("user", "Launch on Tuesday?"),
    ]
    assert compaction["type"] == "compaction"
    assert compacted.usage.input_tokens == len("be briefLaunch on Tuesday?Yes.free" + REQUEST)
    assert compacted.usage.output_tokens == len(summary) + 1
    said = said_by(compaction["encrypted_content"], "")
    assert said == INTRODUCTION + summary
    items: Any = [*kept, compaction, {"role": "user", "content": "X"}]
    answer = client.responses.create(model=MODEL, input=items, temperature=0)
    assert answer.output_text == "YZ"
    assert answer.usage is not None and answer.usage.input_tokens == len(f"be briefLaunch on Tuesday?{said}X")
    again = client.responses.compact(model=MODEL, previous_response_id=answer.id)
    assert [item.type for item in again.output] == ["message", "message", "message", "compaction"]


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("/compact", {"input": None}, "input"),
        ("/compact", {"input": []}, "input"),
        ("/compact", {"model": "nope"}, "model"),
        ("/compact", {"model": None}, "model"),
        ("/compact", {"previous_response_id": "nope"}, "previous_response_id"),
        ("/compact", {"input": [{"role": "user", "content": 7}]}, "input"),
        ("/compact", {"input": "a" * 1020}, "input"),
        ("", {"input": [{"type": "compaction"}]}, "input"),
        ("", {"input": [{"type": "compaction", "encrypted_content": "gAAA=="}]}, "input"),
        ("", {"input": [{"type": "compaction", "encrypted_content": "/w=="}]}, "input"),
    ],
)
def test_what_cannot_be_made_shorter_is_said(
    server: RunningServer, path: str, fields: dict[str, Any], param: str | None
) -> None:
    answer = server.client.post(f"/v1/responses{path}", json={"model": MODEL, "input": "A", **fields})
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param, answer.text
    assert server.is_alive()


def test_a_stream_that_fails_says_so(server: RunningServer) -> None:
    body = {"model": MODEL, "input": "A", "stream": True, "ignore_eos": True, "request_timeout": 0.05}
    *_, last = server.client.post("/v1/responses", json=body).text.strip().split("\n\n")
    event = json.loads(last.split("data: ")[1])
    assert event["type"] == "response.failed"
    assert event["response"]["error"]["code"] == "timeout"


def test_the_store_keeps_the_newest_within_its_limit() -> None:  # OA14
    store = ResponseStore(10 * ENTRY_BYTES)
    for number in range(2000):
        store.put(str(number), b"x" * 100, [], 100)
    assert 0 < len(store) < 10
    assert store.num_bytes <= 10 * ENTRY_BYTES
    assert store.get("1999").body == b"x" * 100
    store.remove("1999")
    for missing in ("0", "1999"):
        with pytest.raises(ApiError):
            store.get(missing)
    store.put("large", b"x" * 100 * ENTRY_BYTES, [], 0)
    assert (len(store), store.num_bytes) == (0, 0)
