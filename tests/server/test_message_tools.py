"""Tools and thoughts in /v1/messages: a shape makes the model that counts write what a test needs."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from tests.own_logits_processors import WRONG_CALL
from tests.schemas import is_valid
from tests.server.conftest import CALL, CITY, FORECAST, MODEL, RunningServer
from tests.server.spoken import Answer, Spoken, spoken

WEATHER: Any = {"name": "weather", "description": "?", "input_schema": CITY}
NOW: Any = {"name": "now", "input_schema": {"type": "object"}}
HELLO: list[Any] = [{"role": "user", "content": "A"}]
NAMED: Any = {"type": "tool", "name": "weather"}


@pytest.fixture(scope="module")
def client(tool_server: RunningServer) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=tool_server.url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def asked(**fields: Any) -> dict[str, Any]:
    return {
        "model": MODEL,
        "max_tokens": 500,
        "messages": HELLO,
        "tools": [WEATHER, NOW],
        **fields,
        "extra_body": {"temperature": 0, **fields.get("extra_body", {})},
    }


def both(client: anthropic.Anthropic, **fields: Any) -> anthropic.types.Message:
    """The message, which is the same in one piece and as a stream that Anthropic's client adds up."""
    whole = client.messages.create(**asked(**fields))
    with client.messages.stream(**asked(**fields)) as stream:
        streamed = stream.get_final_message()
    told = [[{**block.to_dict(), "id": None} for block in message.content] for message in (whole, streamed)]
    assert told[0] == told[1]
    assert (whole.stop_reason, whole.usage.output_tokens) == (streamed.stop_reason, streamed.usage.output_tokens)
    return whole


def written(text: str) -> dict[str, Any]:
    """Arguments that make the model write this."""
    return {"extra_body": {"structured_outputs": {"choice": [text]}}}


def test_thoughts_text_and_calls_are_blocks_in_their_order(client: anthropic.Anthropic) -> None:  # TC02 TC08 TC11
    message = both(client, **written(f"<think>x</think>y {CALL}\n{CALL}"))
    thoughts, text, one, other = message.content
    assert thoughts.type == "thinking" and thoughts.thinking == "x"
    assert text.type == "text" and text.text == "y"
    assert one.type == "tool_use" and other.type == "tool_use"
    assert (one.name, one.input, message.stop_reason) == ("now", {}, "tool_use")
    assert one.id.startswith("toolu_") and one.id != other.id


def test_every_format_is_read_in_one_piece_and_as_a_stream(format_server: tuple[Spoken, RunningServer]) -> None:
    said, server = format_server
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        for text, answer in said.answers.items():
            message = both(client, extra_body=spoken(text))
            thoughts = "".join(block.thinking for block in message.content if block.type == "thinking")
            content = "".join(block.text for block in message.content if block.type == "text")
            calls = [(block.name, json.dumps(block.input)) for block in message.content if block.type == "tool_use"]
            assert Answer(thoughts, content, tuple(calls)) == answer, text
            assert message.stop_reason == ("tool_use" if calls else "end_turn")


def test_calls_that_must_come_hold_to_their_schema_in_every_format(
    format_server: tuple[Spoken, RunningServer],
) -> None:
    said, server = format_server
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0, timeout=60) as client:
        for choice in ({"type": "any", "disable_parallel_tool_use": True}, NAMED) if said.has_calls else ():
            (call,) = both(client, tool_choice=choice, tools=[WEATHER]).content
            assert call.type == "tool_use" and call.name == "weather"
            assert call.input["city"] in ("Rome", "Zürich")


def test_events_of_blocks_come_in_order(client: anthropic.Anthropic) -> None:  # OA15
    found: list[Any] = list(client.messages.create(**asked(stream=True, **written(f"<think>x</think>{CALL}"))))
    kinds = [kind for kind, _ in itertools.groupby(event.type for event in found)]  # how many deltas is chance
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", *block, *block, "message_delta", "message_stop"]
    thoughts, call = ([event for event in found[1:-2] if event.index == index] for index in (0, 1))
    assert found[1:-2] == thoughts + call
    assert (thoughts[1].delta.type, call[0].content_block.input) == ("thinking_delta", {})
    assert "".join(event.delta.partial_json for event in call[1:-1]) == "{}"
    assert found[-2].delta.stop_reason == "tool_use"


def test_a_call_that_must_come_holds_to_its_schema(client: anthropic.Anthropic) -> None:  # TC02
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, NAMED):
        message = both(client, tool_choice=choice, tools=[WEATHER])
        (call,) = message.content
        assert call.type == "tool_use" and call.name == "weather"
        assert call.input["city"] in ("Rome", "Zürich")
        assert message.stop_reason == "tool_use"


@pytest.mark.parametrize("extra", [{}, *({"temperature": 2, "seed": seed} for seed in range(4))])
def test_a_strict_call_of_the_models_own_choice_is_valid_whatever_the_model_would_write(
    wrong_call_server: RunningServer, extra: dict[str, Any]
) -> None:
    with anthropic.Anthropic(base_url=wrong_call_server.url, api_key="none", max_retries=0, timeout=60) as client:
        for strict, is_held in ((False, False), (True, True)):
            tools: list[Any] = [{"name": "weather", "input_schema": FORECAST, "strict": strict}, NOW]
            message = both(client, tools=tools, extra_body=extra)
            (call,) = message.content
            assert call.type == "tool_use" and (call.name, message.stop_reason) == ("weather", "tool_use")
            assert is_valid(FORECAST, call.input) is is_held, call
            assert (json.dumps(call.input) in WRONG_CALL) is not is_held


def test_a_call_that_is_cut_shows_its_text(client: anthropic.Anthropic) -> None:
    message = client.messages.create(**asked(tool_choice=NAMED, max_tokens=57))
    (call,) = message.content
    assert call.type == "tool_use" and list(call.input) == ["INVALID_JSON"]
    assert message.stop_reason == "max_tokens"


def test_one_call_at_a_time_and_none_at_all_on_request(client: anthropic.Anthropic) -> None:  # TC08
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(both(client, tool_choice=choice, **written(f"{CALL}\n{CALL}")).content) == 1
    (text,) = both(client, tool_choice={"type": "none"}, **written(CALL)).content
    assert text.type == "text" and text.text == CALL


def test_an_answer_of_nothing_is_an_empty_text(client: anthropic.Anthropic) -> None:
    message = both(client, messages=[{"role": "user", "content": "Z"}])
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": "", "citations": None}]


def test_thinking_is_switched_by_the_request(client: anthropic.Anthropic) -> None:  # TC11
    (thoughts,) = both(client, thinking={"type": "enabled", "budget_tokens": 1024}, tools=[], max_tokens=3).content
    assert thoughts.type == "thinking" and thoughts.thinking == "?@A"
    thinking: Any = {"type": "enabled", "budget_tokens": 2}
    thoughts, text = both(client, thinking=thinking, tools=[], max_tokens=14).content
    assert thoughts.type == "thinking" and thoughts.thinking == "?@"
    assert text.type == "text" and text.text == "?@AB"
    (text,) = both(client, thinking={"type": "disabled"}, tools=[], max_tokens=3).content
    assert text.type == "text" and text.text == "?@A"


def test_a_conversation_with_calls_goes_on(client: anthropic.Anthropic) -> None:  # TC02
    first = client.messages.create(**asked(tools=[NOW], **written(f"<think>t</think>s {CALL}")))
    result = {"type": "tool_result", "tool_use_id": first.content[-1].id, "content": [{"type": "text", "text": "w"}]}  # type: ignore[union-attr]
    messages: list[Any] = [
        *HELLO,
        {"role": "assistant", "content": [block.to_dict() for block in first.content]},
        {"role": "user", "content": [result, {"type": "text", "text": "X"}]},
    ]
    shown = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]
    prompt = json.dumps(shown) + " Call as <tool_call>{...}</tool_call>" + "A" + "ts" + "now" + "w" + "X"
    count = client.messages.count_tokens(model=MODEL, messages=messages, tools=[NOW])
    assert count.input_tokens == len(prompt)
    (answer,) = client.messages.create(**asked(messages=messages, tools=[NOW])).content
    assert answer.type == "text" and answer.text == "YZ"


def test_a_schema_holds_an_answer(client: anthropic.Anthropic) -> None:
    shape = {"format": {"type": "json_schema", "schema": CITY}}
    (text,) = both(client, tools=[], extra_body={"output_config": shape}).content
    assert text.type == "text" and json.loads(text.text)["city"] in ("Rome", "Zürich")


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"tools": [{"name": "f", "input_schema": {"type": "strng"}}]}, "'f'"),
        ({"tools": [{"input_schema": {}}]}, "tools[0]"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tool_choice": {"type": "perhaps"}}, "any"),
        ({"tool_choice": {"type": "tool"}}, "name"),
        ({"tool_choice": {"type": "tool", "name": "f"}}, "'f'"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "no tools"),
        ({"thinking": {"type": "perhaps"}}, "adaptive"),
        ({"thinking": {"type": "enabled", "budget_tokens": "all"}}, "budget_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "tool_result"),
        ({"messages": [*HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "1"}]}]}, "input"),
        ({"output_config": {"format": {"type": "yaml"}}}, "json_schema"),
    ],
)
def test_what_cannot_be_done_is_said(tool_server: RunningServer, fields: dict[str, Any], word: str) -> None:
    body = {"model": MODEL, "max_tokens": 2, "messages": HELLO, "tools": [WEATHER], **fields}
    answer = tool_server.client.post("/v1/messages", json=body)
    assert answer.status_code == 400, answer.text
    assert word in answer.json()["error"]["message"]
