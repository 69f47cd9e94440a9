"""Tools and thoughts in /v1/responses: a shape makes the model that counts write what a test needs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.own_logits_processors import WRONG_CALL
from tests.schemas import is_valid
from tests.server.conftest import CALL, CITY, FORECAST, MODEL, RunningServer, written
from tests.server.spoken import Answer, Spoken, spoken

WEATHER: dict[str, Any] = {"type": "function", "name": "weather", "description": "?", "parameters": CITY}
NOW: dict[str, Any] = {"type": "function", "name": "now"}
NAMED = {"type": "function", "name": "weather"}


@pytest.fixture(scope="module")
def client(tool_server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tool_server.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


def post(server: RunningServer, **fields: Any) -> Any:
    body = {"model": MODEL, "input": "A", "temperature": 0, "tools": [WEATHER, NOW], "store": False, **fields}
    answer = server.client.post("/v1/responses", json=body)
    assert answer.status_code == 200, answer.text
    return answer


def events_of(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    text = post(server, stream=True, **fields).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key not in ("id", "call_id")} for item in items]


def both(server: RunningServer, **fields: Any) -> tuple[list[dict[str, Any]], str]:
    """Items and status: the same in one piece and as a stream, whose deltas add up to them."""
    whole = post(server, **fields).json()
    events = events_of(server, **fields)
    last = events[-1]["response"]
    assert without_ids(last["output"]) == without_ids(whole["output"])
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == last["output"]
    for index, item in enumerate(last["output"]):
        deltas = [event["delta"] for event in events if "delta" in event and event["output_index"] == index]
        assert "".join(deltas) == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])
    return whole["output"], whole["status"]


def test_thoughts_text_and_calls_are_items_in_their_order(tool_server: RunningServer) -> None:  # TC02 TC08 TC11
    items, status = both(tool_server, **written(f"<think>x</think>y {CALL}\n{CALL}"))
    assert status == "completed"
    assert [item["type"] for item in items] == ["reasoning", "message", "function_call", "function_call"]
    assert items[0]["content"] == [{"type": "reasoning_text", "text": "x"}]
    assert items[1]["content"][0]["text"] == "y"
    assert [(item["name"], item["arguments"]) for item in items[2:]] == [("now", "{}")] * 2
    assert len({item["call_id"] for item in items[2:]}) == 2


def test_every_format_is_read_in_one_piece_and_as_a_stream(format_server: tuple[Spoken, RunningServer]) -> None:
    said, server = format_server
    for text, answer in said.answers.items():
        items, status = both(server, **spoken(text))
        texts = {item["type"]: item["content"][0]["text"] for item in items if "content" in item}
        calls = tuple((item["name"], item["arguments"]) for item in items if item["type"] == "function_call")
        assert Answer(texts.get("reasoning", ""), texts.get("message", ""), calls) == answer, text
        assert (len(items), status) == (len(texts) + len(calls), "completed")


def test_calls_that_must_come_hold_to_their_schema_in_every_format(
    format_server: tuple[Spoken, RunningServer],
) -> None:
    said, server = format_server
    for choice in ("required", NAMED) if said.has_calls else ():
        (call,), _ = both(server, tool_choice=choice, tools=[WEATHER], parallel_tool_calls=False)
        assert (call["type"], call["name"]) == ("function_call", "weather")
        assert json.loads(call["arguments"])["city"] in ("Rome", "Zürich")


def test_events_of_a_call_and_of_thoughts_come_in_order(tool_server: RunningServer) -> None:
    events = events_of(tool_server, **written(f"<think>x</think>{CALL}"))
    told = [event["type"].removeprefix("response.") for event in events]
    assert [kind for kind, _ in itertools.groupby(told)] == [  # how many deltas is chance
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    added = [event["item"] for event in events if event["type"] == "response.output_item.added"][1]
    (done,) = (event for event in events if event["type"] == "response.function_call_arguments.done")
    assert (added["status"], added["arguments"]) == ("in_progress", "")
    assert (done["name"], done["arguments"]) == ("now", "{}")


def test_a_call_that_must_come_holds_to_its_schema(tool_server: RunningServer) -> None:  # TC02
    for choice in ("required", NAMED):
        (call,), status = both(tool_server, tool_choice=choice, tools=[WEATHER], parallel_tool_calls=False)
        assert (call["type"], call["name"], status) == ("function_call", "weather", "completed")
        assert json.loads(call["arguments"])["city"] in ("Rome", "Zürich")


@pytest.mark.parametrize("fields", [{}, *({"temperature": 2, "seed": seed} for seed in range(4))])
def test_a_strict_call_of_the_models_own_choice_is_valid_whatever_the_model_would_write(
    wrong_call_server: RunningServer, fields: dict[str, Any]
) -> None:
    for strict, is_held in ((False, False), (True, True)):
        tools = [{"type": "function", "name": "weather", "parameters": FORECAST, "strict": strict}, NOW]
        (call,), status = both(wrong_call_server, tools=tools, max_output_tokens=200, **fields)
        assert (call["type"], call["name"], status) == ("function_call", "weather", "completed")
        assert is_valid(FORECAST, json.loads(call["arguments"])) is is_held, call
        assert (call["arguments"] in WRONG_CALL) is not is_held


def test_a_call_that_is_cut_is_incomplete(tool_server: RunningServer) -> None:
    items, status = both(tool_server, tool_choice=NAMED, max_output_tokens=25)
    assert (status, items[-1]["status"]) == ("incomplete", "incomplete")


def test_one_call_at_a_time_and_none_at_all_on_request(tool_server: RunningServer) -> None:  # TC08
    items, _ = both(tool_server, parallel_tool_calls=False, **written(f"{CALL}\n{CALL}"))
    assert [item["type"] for item in items] == ["function_call"]
    items, _ = both(tool_server, tool_choice="none", **written(CALL))
    assert [item["type"] for item in items] == ["message"]


def test_thoughts_are_counted(tool_server: RunningServer) -> None:
    usage = post(tool_server, **written("<think>xyz</think>a")).json()["usage"]
    assert usage["output_tokens_details"] == {"reasoning_tokens": 3}


def test_what_was_asked_is_told_again(tool_server: RunningServer) -> None:
    answer = post(tool_server, max_output_tokens=1, reasoning={"effort": "low"}).json()
    assert answer["tools"] == [
        {"strict": False, **WEATHER},
        {"description": None, "parameters": None, "strict": False, **NOW},
    ]
    assert answer["reasoning"] == {"effort": "low", "summary": None}


def test_a_conversation_with_calls_goes_on(client: openai.OpenAI, tool_server: RunningServer) -> None:  # TC02
    shown = json.dumps([{"type": "function", "function": {"name": "now"}}]) + " Call as <tool_call>{...}</tool_call>"
    first = client.responses.create(
        model=MODEL, input="a", tools=[NOW], extra_body=written(f"<think>x</think>{CALL}"), temperature=0
    )
    call = first.output[-1]
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "12:00 X"}
    second = client.responses.create(
        model=MODEL, input=[result], previous_response_id=first.id, tools=[NOW], temperature=0
    )
    assert second.output_text == "YZ"
    assert second.usage is not None and second.usage.input_tokens == len(shown + "a" + "x" + "now" + "12:00 X")
    items = [{"role": "user", "content": "a"}, *(item.to_dict() for item in first.output), result]
    third = client.responses.create(model=MODEL, input=items, tools=[NOW], temperature=0)
    assert third.usage is not None and third.usage.input_tokens == second.usage.input_tokens


class City(BaseModel):
    city: int


def test_openai_client_parses_formats_and_calls(client: openai.OpenAI) -> None:
    parsed = client.responses.parse(model=MODEL, input="A", text_format=City, temperature=0, max_output_tokens=64)
    assert isinstance(parsed.output_parsed, City)
    required: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    with client.responses.stream(model=MODEL, input="A", temperature=0, **required) as stream:
        kinds = [event.type for event in stream]
        (call,) = stream.get_final_response().output
    assert "response.function_call_arguments.delta" in kinds
    assert call.type == "function_call" and json.loads(call.arguments)["city"] in ("Rome", "Zürich")


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"tool_choice": "perhaps"}, "tool_choice", "required"),
        ({"tool_choice": {"type": "function", "name": "f"}}, "tool_choice", "'f'"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "no tools"),
        ({"tool_choice": "required", "text": {"format": {"type": "json_object"}}}, "tool_choice", "shape"),
        ({"text": {"format": {"type": "json_object"}}, **written("a")}, "text", "not both"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input", "call_id"),
        ({"input": [{"type": "function_call", "call_id": "1", "name": "f"}]}, "input", "arguments"),
        ({"input": [{"type": "computer_call"}]}, "input", "computer_call"),
    ],
)
def test_what_cannot_be_done_is_said(tool_server: RunningServer, fields: dict[str, Any], param: str, word: str) -> None:
    body = {"model": MODEL, "input": "A", "tools": [WEATHER], **fields}
    answer = tool_server.client.post("/v1/responses", json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert word in answer.json()["error"]["message"]


def test_arguments_that_are_no_json_come_back_in_a_conversation(tool_server: RunningServer) -> None:
    items = [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "t"}]},
        {"type": "function_call", "call_id": "1", "name": "now", "arguments": "{"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "w"}]},
    ]
    assert post(tool_server, input=items).json()["output"][0]["content"][0]["text"] == "xyz"
