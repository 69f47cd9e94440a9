"""Tools and thoughts in the interfaces, on the model that counts: a shape holds it to the text that a test needs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from octavo.config.server import ServerConfig
from octavo.server.api_error import ApiError
from octavo.server.dialect import AnswerPlan, Dialect
from octavo.server.tool_use import tool_use
from octavo.words.sampling_params import SamplingParams
from octavo.words.structured_outputs import StructuredOutputParams
from tests.own_logits_processors import WRONG_CALL
from tests.schemas import is_valid
from tests.server.conftest import (
    CALL,
    CITY,
    FORECAST,
    MODEL,
    TOOL_TEMPLATE,
    RunningServer,
    serving,
    serving_tools,
    written,
)
from tests.server.spoken import Answer, Spoken, spoken

CHAT = "/v1/chat/completions"
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
NOW: Any = {"type": "function", "function": {"name": "now"}}
STRICT = {**WEATHER["function"], "strict": True}
AWKWARD = 'a{b}"c"\n</x> Zürich 東京 🦙'


@pytest.fixture(scope="module")
def server(tool_server: RunningServer) -> RunningServer:
    return tool_server


class Speaker:
    """What a dialect asks of a tokenizer."""

    chat_template = TOOL_TEMPLATE
    special_ids: frozenset[int] = frozenset()


def body_of(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "A"}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "tools": [WEATHER, NOW], **fields}


def whole(server: RunningServer, **fields: Any) -> tuple[dict[str, Any], str]:
    answer = server.client.post(CHAT, json=body_of(**fields))
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice["message"], choice["finish_reason"]


def streamed(server: RunningServer, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message that the deltas of a stream add up to."""
    text = server.client.post(CHAT, json=body_of(stream=True, **fields)).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    message: dict[str, Any] = {"tool_calls": []}
    for choice in (event["choices"][0] for event in events):
        for name in ("content", "reasoning_content"):
            if name in choice["delta"]:
                message[name] = message.get(name, "") + choice["delta"][name]
        for call in choice["delta"].get("tool_calls", ()):
            if call["index"] == len(message["tool_calls"]):
                assert call["id"].startswith("call_") and call["type"] == "function"
                message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
            message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message, choice["finish_reason"]


def both(server: RunningServer, **fields: Any) -> tuple[str | None, str | None, list[tuple[str, str]], str]:
    """Thoughts, content, calls and the reason of the end: the same in one piece and as a stream."""
    one, reason = whole(server, **fields)
    other, same_reason = streamed(server, **fields)
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in one.get("tool_calls", ())]
    assert [tuple(call.values()) for call in other["tool_calls"]] == calls
    assert same_reason == reason
    for name in ("content", "reasoning_content"):
        assert (other.get(name) or "") == (one.get(name) or "")
    return one.get("reasoning_content"), one["content"], calls, reason


def test_a_call_of_the_models_own_choice(server: RunningServer) -> None:  # TC02 TC09
    assert both(server, **written(f"hi {CALL}")) == (None, "hi", [("now", "{}")], "tool_calls")


def counted(server: RunningServer) -> Counter[tuple[str, str, str]]:
    """Answers that tool parsers have read, by interface, mode and outcome."""
    families = text_string_to_metric_families(server.client.get("/metrics").text)
    (family,) = (each for each in families if each.name == "vllm:tool_call_parser_invocations")
    labels = ("request_type", "mode", "outcome")
    return Counter({tuple(each.labels[name] for name in labels): int(each.value) for each in family.samples})


def test_answers_to_requests_with_tools_are_counted_once_each(server: RunningServer) -> None:
    before = counted(server)
    assert len(before) == 3 * 2 * 2
    both(server, **written(f"hi {CALL}"))
    whole(server)
    whole(server, tools=None)
    server.client.post(CHAT, json=body_of(n=2, temperature=1, max_tokens=2, stream=True))
    flat = {"type": "function", **NOW["function"]}
    asked = {"model": MODEL, "temperature": 0, **written(CALL)}
    server.client.post("/v1/responses", json={**asked, "input": "A", "tools": [flat]})
    message = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 50, "stream": True}
    tool = {"name": "now", "input_schema": {"type": "object"}}
    server.client.post("/v1/messages", json={**asked, **message, "tools": [tool]})
    assert counted(server) - before == {
        ("chat_completions", "non_streaming", "tool_call"): 1,
        ("chat_completions", "streaming", "tool_call"): 1,
        ("chat_completions", "non_streaming", "no_tool_call"): 1,
        ("chat_completions", "streaming", "no_tool_call"): 2,
        ("responses", "non_streaming", "tool_call"): 1,
        ("other", "streaming", "tool_call"): 1,
    }


def test_the_effort_of_reasoning_is_shown_to_the_template(server: RunningServer) -> None:
    plain = {"model": MODEL, "temperature": 0}
    asked = {**plain, "messages": [{"role": "user", "content": "A"}], "reasoning_effort": "low"}
    assert server.client.post(CHAT, json=asked).json()["choices"][0]["message"]["content"] == "xyz"
    kwargs = {"reasoning_effort": "nov"}  # what is said to the template itself goes first
    told = server.client.post(CHAT, json={**asked, "chat_template_kwargs": kwargs}).json()
    assert told["choices"][0]["message"]["content"] == "wxyz"
    body = {**plain, "input": "A", "reasoning": {"effort": "low"}}
    answer = server.client.post("/v1/responses", json=body).json()
    assert answer["output"][0]["content"][0]["text"] == "xyz"
    assert answer["reasoning"]["effort"] == "low"


def test_an_answer_without_a_call(server: RunningServer) -> None:  # TC02
    _, content, calls, reason = both(server)
    assert (content, calls, reason) == ("BCDEFGHIJKLMNOPQRSTUVWXYZ", [], "stop")


def test_a_call_without_arguments(server: RunningServer) -> None:  # TC04
    for text in (CALL, '<tool_call>{"name":"now"}</tool_call>'):
        assert both(server, **written(text))[2] == [("now", "{}")]


def test_awkward_and_foreign_arguments_come_back_equal(server: RunningServer) -> None:  # TC05 TC06
    arguments = json.dumps({"city": AWKWARD}, ensure_ascii=False)
    text = f'<tool_call>\n{{"name": "weather", "arguments": {arguments}}}\n</tool_call>'
    assert both(server, **written(text))[2] == [("weather", arguments)]


def test_markup_that_is_never_closed_is_content(server: RunningServer) -> None:  # TC09
    assert both(server, **written("a <b <tool_call>"))[1:] == ("a <b <tool_call>", [], "stop")


@pytest.mark.parametrize(("parallel", "num_calls"), [(None, 2), (True, 2), (False, 1)])
def test_one_call_at_a_time_on_request(server: RunningServer, parallel: bool | None, num_calls: int) -> None:  # TC08
    assert len(both(server, parallel_tool_calls=parallel, **written(f"{CALL}\n{CALL}"))[2]) == num_calls


def test_a_call_that_must_come_holds_to_its_schema(server: RunningServer) -> None:  # TC02
    named = {"type": "function", "function": {"name": "weather"}}
    for choice, reason in (("required", "tool_calls"), (named, "stop")):
        fields = {"tool_choice": choice, "tools": [WEATHER], "parallel_tool_calls": False}
        _, content, ((name, arguments),), found = both(server, **fields)
        assert (name, content, found) == ("weather", None, reason)
        assert json.loads(arguments)["city"] in ("Rome", "Zürich")


def test_a_call_that_is_cut_says_length(server: RunningServer) -> None:
    assert both(server, tool_choice="required", max_tokens=25)[3] == "length"


def test_no_tools_are_shown_under_none(server: RunningServer) -> None:
    _, content, calls, _ = both(server, tool_choice="none", **written(CALL))
    assert (content, calls) == (CALL, [])

    def prompt(**fields: Any) -> list[int]:
        answer = server.client.post(CHAT, json=body_of(max_tokens=1, return_token_ids=True, **fields))
        return list(answer.json()["prompt_token_ids"])

    assert prompt(tool_choice="none") == prompt(tools=None) == list(b"A")
    assert len(prompt(tool_choice="auto")) > 100


def test_several_answers_are_read_apart(server: RunningServer) -> None:
    choices = server.client.post(CHAT, json=body_of(n=2, temperature=1, **written(CALL))).json()["choices"]
    ids = {choice["message"]["tool_calls"][0]["id"] for choice in choices}
    assert len(ids) == 2


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "strng"}}}]}, "tools", "'f'"),
        (
            {
                "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": 1}}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            "tool_choice",
            "'g'",
        ),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools", "tools[0]"),
        ({"tools": [{"type": "function"}]}, "tools", "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools", "web_search"),
        ({"tools": [7]}, "tools", "tools[0]"),
        ({"tools": [NOW] * 600}, "tools", "at most"),
        ({"tool_choice": "perhaps"}, "tool_choice", "required"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "response_format"),
    ],
)
def test_what_cannot_be_called_is_said(server: RunningServer, fields: dict[str, Any], param: str, word: str) -> None:
    answer = server.client.post(CHAT, json=body_of(**fields))  # TC10 SO16
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert word in error["message"]
    assert server.is_alive()


def tool_of(argument: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": argument}}}}


def test_a_broken_pattern_is_refused(server: RunningServer) -> None:  # TC10
    broken = server.client.post(CHAT, json=body_of(tools=[tool_of({"type": "string", "pattern": "("})]))
    assert broken.status_code == 400 and "'f'" in broken.json()["error"]["message"]
    assert server.is_alive()


@pytest.mark.parametrize(
    ("argument", "named"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "string", "format": "iri"}, "iri"),
        ({"type": "string", "pattern": "a(?=b)"}, "look-around"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "oneOf"),
        ({"type": "object", "patternProperties": {"a": {"type": "string"}, "b": {"type": "null"}}}, "disjoint"),
        ({"type": "string", "minLength": 1_000_000}, "1,000,000"),
        ({"type": "string", "pattern": "(a{1,900}){1,900}"}, "810,000"),
        ({"type": "integer", "multipleOf": 86_400}, "multipleOf 86400"),
        ({"$ref": "http://127.0.0.1:1/a"}, "http://127.0.0.1:1/a"),
    ],
)
def test_what_no_grammar_can_hold_to_is_refused_only_where_a_call_is_forced(
    server: RunningServer, argument: dict[str, Any], named: str
) -> None:
    tool = tool_of(argument)
    assert server.client.post(CHAT, json=body_of(tools=[tool], max_tokens=1)).status_code == 200
    strict = {"type": "function", "function": {**tool["function"], "strict": True}}
    for fields in ({"tools": [tool], "tool_choice": "required"}, {"tools": [strict]}):
        held = server.client.post(CHAT, json=body_of(**fields))
        assert held.status_code == 400 and named in held.json()["error"]["message"], held.text


def test_strict_tools_hold_calls_of_the_models_own_choice() -> None:
    plan = AnswerPlan(Dialect(Speaker(), ServerConfig()), tool_use([STRICT], "auto", name=None, several=True), "")
    shape = plan.applied_to(SamplingParams()).structured_outputs
    assert shape is not None and shape.grammar is not None and "Rome" in shape.grammar
    asked = SamplingParams(structured_outputs=StructuredOutputParams(json_object=True))
    assert plan.applied_to(asked).structured_outputs == asked.structured_outputs


@pytest.mark.parametrize("fields", [{}, *({"temperature": 2, "seed": seed} for seed in range(4))])
def test_a_strict_call_of_the_models_own_choice_is_valid_whatever_the_model_would_write(
    wrong_call_server: RunningServer, fields: dict[str, Any]
) -> None:
    tool = {"name": "weather", "parameters": FORECAST}
    for strict, is_held in ((None, False), (False, False), (True, True)):
        tools = [{"type": "function", "function": {**tool, "strict": strict}}, NOW]
        _, content, ((name, arguments),), reason = both(wrong_call_server, tools=tools, max_tokens=200, **fields)
        assert (name, content, reason) == ("weather", None, "tool_calls")
        assert is_valid(FORECAST, json.loads(arguments)) is is_held, arguments
        assert (arguments in WRONG_CALL) is not is_held


def test_strict_is_refused_where_a_format_cannot_be_held_to_it() -> None:
    dialect = Dialect(Speaker(), ServerConfig(tool_call_parser="pythonic"))
    bounded = {"properties": {"city": {"type": "string", "maxLength": 3}}}
    plan = AnswerPlan(dialect, tool_use([{**STRICT, "parameters": bounded}], "auto", name=None, several=True), "")
    with pytest.raises(ApiError, match="pythonic.*leave out strict") as refusal:
        plan.applied_to(SamplingParams())
    assert refusal.value.status == 400
    loose = AnswerPlan(dialect, tool_use([WEATHER["function"]], "auto", name=None, several=True), "")
    assert loose.applied_to(SamplingParams()).structured_outputs is None


@pytest.mark.parametrize(
    ("parser", "choice", "tools", "is_kept"),
    [
        ("mistral", "auto", [WEATHER["function"]], True),
        ("deepseek", "auto", [WEATHER["function"]], True),
        ("llama3_json", "auto", [WEATHER["function"]], True),
        ("pythonic", "auto", [WEATHER["function"]], True),
        ("harmony", "auto", [WEATHER["function"]], True),
        ("harmony", "auto", [], True),  # thoughts are in its markup too
        ("hermes", "auto", [WEATHER["function"]], False),
        ("mistral", "auto", [], False),
        ("mistral", "none", [WEATHER["function"]], False),
        ("mistral", "required", [WEATHER["function"]], False),  # a JSON object alone
    ],
)
def test_special_tokens_are_kept_where_the_markup_is_some(
    parser: str, choice: str, tools: list[Any], is_kept: bool
) -> None:
    dialect = Dialect(Speaker(), ServerConfig(tool_call_parser=parser))
    plan = AnswerPlan(dialect, tool_use(tools, choice, name=None, several=True), "")
    assert plan.applied_to(SamplingParams()).skip_special_tokens is not is_kept


def test_thoughts_are_told_from_content(server: RunningServer) -> None:  # TC11
    assert both(server, **written("<think>x</think>y"))[:2] == ("x", "y")
    thoughts, content, calls, _ = both(server, **written(f"<think>x</think>{CALL}"))
    assert (thoughts, content or "", calls) == ("x", "", [("now", "{}")])


def test_thoughts_that_the_template_opened_and_that_are_cut(server: RunningServer) -> None:  # TC11
    fields: dict[str, Any] = {"tools": None, "max_tokens": 3, "chat_template_kwargs": {"thinking": True}}
    assert both(server, **fields) == ("?@A", None, [], "length")


def test_thoughts_that_nobody_wants_to_see_are_left_out(server: RunningServer) -> None:
    fields: dict[str, Any] = {"tools": None, "chat_template_kwargs": {"thinking": True}, "max_tokens": 14}
    fields["thinking_token_budget"] = 3
    assert both(server, **fields) == ("?@A", "?@A", [], "length")
    assert both(server, **fields, include_reasoning=True) == ("?@A", "?@A", [], "length")
    message, reason = whole(server, **fields, include_reasoning=False)
    assert (message["content"], reason) == ("?@A", "length")
    assert "reasoning_content" not in message
    assert both(server, **fields, include_reasoning=False) == (None, "?@A", [], "length")


def test_thinking_switched_off_leaves_content(server: RunningServer) -> None:  # TC11
    fields: dict[str, Any] = {"tools": None, "max_tokens": 3, "chat_template_kwargs": {"thinking": False}}
    assert both(server, **fields) == (None, "?@A", [], "length")


def test_a_grammar_waits_for_the_end_of_thoughts(server: RunningServer) -> None:  # SO10
    fields: dict[str, Any] = {"tool_choice": "required", "max_tokens": 3}
    assert both(server, chat_template_kwargs={"thinking": True}, **fields)[0] == "?@A"
    assert both(server, chat_template_kwargs={"thinking": False}, **fields)[0] is None


THOUGHTS_THAT_END = {"chat_template_kwargs": {"thinking": True}, "thinking_token_budget": 2}
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}


@pytest.fixture(scope="module")
def drafting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """The same server, with drafts from what was said before."""
    options = ("--speculative-method", "ngram", "--prompt-lookup-min", "1", "--no-adaptive-speculation")
    with serving_tools(tmp_path_factory.mktemp("drafting"), *options) as server:
        yield server


@pytest.mark.parametrize("fields", [{}, {"temperature": 2, "seed": 1}, {"temperature": 2, "seed": 2}])
def test_a_call_that_must_come_begins_after_the_thoughts_with_drafts_and_without(
    server: RunningServer, drafting_server: RunningServer, fields: dict[str, Any]
) -> None:  # SO10
    held = {"tool_choice": "required", "tools": [WEATHER], "parallel_tool_calls": False, "max_tokens": 200, **fields}
    found = both(server, **THOUGHTS_THAT_END, **held)
    thoughts, content, ((name, arguments),), reason = found
    assert (len(thoughts or ""), content, name, reason) == (2, None, "weather", "tool_calls")
    assert is_valid(CITY, json.loads(arguments))
    assert drafted(drafting_server, **THOUGHTS_THAT_END, **held) == found


@pytest.mark.parametrize("fields", [{}, {"temperature": 2, "seed": 1}, {"temperature": 2, "seed": 2}])
def test_a_format_begins_after_the_thoughts_with_drafts_and_without(
    server: RunningServer, drafting_server: RunningServer, fields: dict[str, Any]
) -> None:  # SO10
    held = {"response_format": FORMAT, "tools": None, "max_tokens": 200, **fields}
    found = both(server, **THOUGHTS_THAT_END, **held)
    thoughts, content, calls, reason = found
    assert (len(thoughts or ""), calls, reason) == (2, [], "stop")
    assert content is not None and content.startswith("{") and content.count("{") == 1
    assert is_valid(CITY, json.loads(content))
    assert drafted(drafting_server, **THOUGHTS_THAT_END, **held) == found


def drafted(server: RunningServer, **fields: Any) -> Any:
    """The same of a server whose drafts were taken meanwhile."""
    before = server.metric("vllm:spec_decode_num_accepted_tokens_total")
    found = both(server, **fields)
    assert server.metric("vllm:spec_decode_num_accepted_tokens_total") > before
    return found


def test_every_format_is_read_in_one_piece_and_as_a_stream(format_server: tuple[Spoken, RunningServer]) -> None:
    said, server = format_server
    for text, answer in said.answers.items():
        reasoning, content, calls, reason = both(server, **spoken(text))
        assert Answer(reasoning or "", content or "", tuple(calls)) == answer, text
        assert reason == ("tool_calls" if calls else "stop")


def test_thoughts_are_told_without_tools_in_every_format(format_server: tuple[Spoken, RunningServer]) -> None:
    said, server = format_server
    for text, answer in said.answers.items():
        if not answer.calls:
            found = both(server, tools=None, **spoken(text))
            assert (found[0] or "", found[1] or "", found[2:]) == (answer.reasoning, answer.content, ([], "stop"))


def test_calls_that_must_come_hold_to_their_schema_in_every_format(
    format_server: tuple[Spoken, RunningServer],
) -> None:
    said, server = format_server
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    if not said.has_calls:
        for held in (fields, {"tools": [{"type": "function", "function": STRICT}]}):
            answer = server.client.post(CHAT, json=body_of(**held))
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
            assert "--tool-call-parser none" in answer.json()["error"]["message"]
        return
    _, content, ((name, arguments),), reason = both(server, **fields)
    assert (content, name, reason) == (None, "weather", "tool_calls")
    assert json.loads(arguments)["city"] in ("Rome", "Zürich")


class City(BaseModel):
    city: int


def test_openai_client_parses_calls_and_formats(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "A"}]
    tool: Any = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    required: Any = {"tools": [tool], "tool_choice": "required", "parallel_tool_calls": False, "temperature": 0}
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, **required)
    (call,) = parsed.choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments in ({"city": "Rome"}, {"city": "Zürich"})
    with client.chat.completions.stream(model=MODEL, messages=messages, **required) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
        assert stream.get_final_completion().choices[0].message.tool_calls is not None
    assert [event.arguments for event in done] == [call.function.arguments]


def test_a_template_without_a_place_for_tools_is_told_of(succ: Path, tmp_path: Path) -> None:
    with serving(succ, tmp_path / "log", "--reasoning-parser", "deepseek_r1") as server:
        answer = server.client.post(CHAT, json=body_of())
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
        assert "chat template" in answer.json()["error"]["message"]
        assert both(server, tools=None, max_tokens=2)[:2] == ("BC", None)


def test_qwen3_thinks_unless_the_template_closed_its_thoughts(succ: Path, tmp_path: Path) -> None:  # TC11
    (tmp_path / "template.jinja").write_text(TOOL_TEMPLATE)
    options = ("--reasoning-parser", "qwen3", "--chat-template", str(tmp_path / "template.jinja"))
    with serving(succ, tmp_path / "log", *options) as server:
        cut: dict[str, Any] = {"tools": None, "max_tokens": 3}
        assert both(server, chat_template_kwargs={"enable_thinking": True}, **cut)[:2] == ("?@A", None)
        assert both(server, chat_template_kwargs={"enable_thinking": False}, **cut)[:2] == (None, "?@A")
        held = written("a <think> b </think> c")
        told = both(server, tools=None, chat_template_kwargs={"enable_thinking": False}, **held)
        assert told == (None, "a <think> b </think> c", [], "stop")
