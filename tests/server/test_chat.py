"""/v1/chat/completions on the model that counts, whose template joins the contents."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from octavo.frontend.llm import LLM
from octavo.server.body import BodyReader
from tests.schemas import is_valid
from tests.server.conftest import MODEL, RunningServer
from tests.server.test_completions import events

CHAT = "/v1/chat/completions"


def chat(server: RunningServer, content: Any = "A", **fields: Any) -> Any:
    messages = [{"role": "user", "content": content}]
    return server.client.post(CHAT, json={"model": MODEL, "messages": messages, "temperature": 0, **fields})


def test_an_answer_without_a_limit_goes_to_its_end(server: RunningServer) -> None:
    answer = chat(server).json()
    (choice,) = answer["choices"]
    assert choice["message"] == {
        "role": "assistant",
        "content": "BCDEFGHIJKLMNOPQRSTUVWXYZ",
        "refusal": None,
        "annotations": [],
    }
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("stop", 26)


def test_a_stream_names_the_role_once(server: RunningServer) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "w"}],
        "temperature": 0,
        "stream_options": {"include_usage": True},
    }
    *found, last = events(server, CHAT, body)
    deltas = [event["choices"][0]["delta"] for event in found]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta["content"] for delta in deltas) == "xyz"
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 4)


def test_text_parts_and_plain_text_are_the_same_prompt(server: RunningServer) -> None:  # TC16
    plain, parts = (
        chat(server, content, max_tokens=2, return_token_ids=True).json()
        for content in ("Abc", [{"type": "text", "text": "Abc"}])
    )
    assert plain["prompt_token_ids"] == parts["prompt_token_ids"] == list(b"Abc")
    assert plain["choices"][0]["token_ids"] == list(b"de")


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_without_top_logprobs(server: RunningServer, stream: bool) -> None:  # SA15
    fields = {"max_tokens": 2, "logprobs": True, "temperature": 0}
    if stream:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A"}], **fields}
        content = [item for event in events(server, CHAT, body) for item in event["choices"][0]["logprobs"]["content"]]
    else:
        content = chat(server, **fields).json()["choices"][0]["logprobs"]["content"]
    assert [(item["token"], item["bytes"], item["top_logprobs"]) for item in content] == [
        ("B", [66], []),
        ("C", [67], []),
    ]


def test_top_logprobs_are_as_many_as_asked(server: RunningServer) -> None:
    (item,) = chat(server, max_tokens=1, logprobs=True, top_logprobs=5).json()["choices"][0]["logprobs"]["content"]
    assert len(item["top_logprobs"]) == 5 and item["top_logprobs"][0]["token"] == "B"
    assert chat(server, top_logprobs=5).json()["error"]["param"] == "top_logprobs"


def test_max_completion_tokens_goes_before_its_old_name(server: RunningServer) -> None:
    assert chat(server, max_tokens=9, max_completion_tokens=2).json()["usage"]["completion_tokens"] == 2


def test_the_last_message_can_be_continued(server: RunningServer) -> None:  # TC13
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "0"}, {"role": "assistant", "content": "a "}],
        "continue_final_message": True,
        "return_token_ids": True,
        "max_tokens": 1,
    }
    assert server.client.post(CHAT, json=body).json()["prompt_token_ids"] == list(b"0a ")
    both = server.client.post(CHAT, json={**body, "add_generation_prompt": True})
    user = server.client.post(CHAT, json={**body, "messages": body["messages"][:1]})
    assert (both.status_code, user.status_code) == (400, 400)


def test_an_offline_chat_has_the_same_prompt(server: RunningServer, succ: Any) -> None:  # TC17
    messages = [{"role": "system", "content": "Be brief. "}, {"role": "user", "content": "Hello"}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 1, "return_token_ids": True}
    online = server.client.post(CHAT, json=body).json()["prompt_token_ids"]
    with LLM(str(succ), max_model_len=64, kv_cache_memory_bytes="4MiB", disable_log_stats=True) as llm:
        assert llm.chat(messages, use_tqdm=False)[0].prompt_token_ids == online


def test_unknown_fields_are_accepted_with_one_warning(server: RunningServer) -> None:  # OA09
    for _ in range(3):
        body = {
            "model": MODEL,
            "messages": [{"role": "user", "content": "A", "name": "me", "mood": 1}],
            "max_tokens": 1,
            "surprise": 1,
        }
        assert server.client.post(CHAT, json=body).status_code == 200
    warnings = [line for line in server.log.read_text().splitlines() if "surprise" in line]
    assert len(warnings) == 1
    assert server.log.read_text().count("messages[].mood") == 1


def test_a_flood_of_unknown_fields_costs_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    bodies = BodyReader(1024)
    flood = (f"field-{number}" + "x" * 500 for number in itertools.count())
    bodies.warn_of(flood)  # which has no end
    assert next(flood).startswith("field-20"), "no more of it is looked at than is told"
    assert [len(record.getMessage()) < 3000 for record in caplog.records] == [True]
    for number in range(200):
        bodies.warn_of(f"other-{number}-{each}" for each in range(20))
    assert len(caplog.records) < 100, "nor does the memory of what was told grow for ever"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "nope"}}, "response_format"),  # SO04
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"structured_outputs": {"choice": ["a"], "regex": "a"}}, "structured_outputs"),  # SO16
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"json": {}, "json_object": True}}, "structured_outputs"),
        ({"structured_outputs": {"colour": "red"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}}, "response_format"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),  # TC18
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),  # TC15
        ({"messages": None}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{}]}, "messages"),
        ({"messages": [{"role": 5, "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": 7}]}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"model": None}, "model"),
    ],
)
def test_what_cannot_be_done_is_said_clearly(server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = server.client.post(CHAT, json={"model": MODEL, "messages": [{"role": "user", "content": "A"}], **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
    assert server.is_alive()


SIZE = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "big"]}},
    "required": ["size"],
    "additionalProperties": False,
}
SUM = r"\d{1,3}(\+\d{1,3}){0,3}"
SHAPES: dict[str, tuple[dict[str, Any], Callable[[str], Any]]] = {
    "choice": ({"structured_outputs": {"choice": ["yes", "no"]}}, ["yes", "no"].__contains__),
    "regex": ({"structured_outputs": {"regex": SUM}}, re.compile(SUM).fullmatch),
    "json": ({"structured_outputs": {"json": SIZE}}, lambda text: is_valid(SIZE, json.loads(text))),
    "json as text": (
        {"structured_outputs": {"json": json.dumps(SIZE)}},
        lambda text: is_valid(SIZE, json.loads(text)),
    ),
    "json_object": ({"structured_outputs": {"json_object": True}}, lambda text: isinstance(json.loads(text), dict)),
    "lark": (
        {"structured_outputs": {"grammar": 'start: NUM ("+" NUM){0,3}\nNUM: /[0-9]{1,3}/'}},
        re.compile(SUM).fullmatch,
    ),
    "gbnf": (
        {"structured_outputs": {"grammar": 'root ::= num ("+" num){0,3}\nnum ::= [0-9]{1,3}'}},
        re.compile(SUM).fullmatch,
    ),
    "format json_schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SIZE}}},
        lambda text: is_valid(SIZE, json.loads(text)),
    ),
    "format json_object": (
        {"response_format": {"type": "json_object"}},
        lambda text: isinstance(json.loads(text), dict),
    ),
}
"""Fields of a request, and whether an answer has that shape."""


@pytest.mark.parametrize("name", SHAPES)
def test_an_answer_can_be_held_to_a_shape(server: RunningServer, name: str) -> None:
    fields, has_shape = SHAPES[name]
    for sampling in ({}, {"temperature": 2, "seed": 1}, {"temperature": 2, "seed": 2}):
        (choice,) = chat(server, **fields, **sampling, max_tokens=200).json()["choices"]
        content = choice["message"]["content"]
        assert has_shape(content) and choice["finish_reason"] == "stop", content
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A"}], "temperature": 0, "max_tokens": 200}
        found = events(server, CHAT, {**body, **fields, **sampling})
        assert "".join(event["choices"][0]["delta"]["content"] for event in found) == content
    assert not SHAPES["json_object"][1]("[]") and not SHAPES["lark"][1]("1+"), "what does not have the shape is seen"


def test_a_format_of_type_text_is_as_none(server: RunningServer) -> None:  # SO04
    plain, text = (
        chat(server, return_token_ids=True, **fields).json() for fields in ({}, {"response_format": {"type": "text"}})
    )
    assert text["choices"] == plain["choices"] and text["prompt_token_ids"] == plain["prompt_token_ids"]
    assert text["choices"][0]["message"]["content"] == "BCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_tagged_parts_of_an_answer_are_a_format_too(server: RunningServer) -> None:
    tag = {"structures": [{"begin": "H", "schema": {"const": 1}, "end": "z"}], "triggers": ["H"]}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "A"}], "temperature": 0, "max_tokens": 30}
    answer = server.client.post(CHAT, json={**body, "response_format": {"type": "structural_tag", **tag}}).json()
    assert answer["choices"][0]["message"]["content"].startswith("BCDEFGH1z")
    wrong = server.client.post(CHAT, json={**body, "response_format": {"type": "structural_tag", "structures": []}})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "structured_outputs")


def test_harmless_forms_are_accepted(server: RunningServer) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    harmless: list[dict[str, Any]] = [
        {"tools": [], "tool_choice": "auto"},
        {"messages": [{"role": "developer", "content": "A"}]},
        {"messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": None, "tool_calls": [call]}]},
    ]
    for fields in harmless:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "A"}], "max_tokens": 1, **fields}
        answer = server.client.post(CHAT, json=body)
        assert answer.status_code == 200, answer.text
