"""/v1/completions on the model that counts, where every answer is known."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.server.conftest import RunningServer, serving

ONLY_TOKEN = "tests.own_logits_processors:OnlyToken"


def choice_of(server: RunningServer, prompt: Any = "A", **fields: Any) -> dict[str, Any]:
    answer = server.complete(prompt, **fields)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return dict(choice)


def events(server: RunningServer, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, which ends as it must."""
    answer = server.client.post(path, json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    *frames, last, rest = answer.text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    assert all(each.startswith("data: ") and "\n" not in each for each in frames)
    return [json.loads(each.removeprefix("data: ")) for each in frames]


def streamed_texts(found: list[dict[str, Any]]) -> dict[int, str]:
    texts: dict[int, str] = {}
    for event in found:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    return texts


def test_a_response_format_holds_a_completion_as_it_holds_a_chat(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False}
    for form in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}):
        choice = choice_of(server, max_tokens=100, response_format=form)
        assert isinstance(found := json.loads(choice["text"]), dict) and choice["finish_reason"] == "stop"
        assert form["type"] == "json_object" or found == {"a": 1}
        body = {"prompt": "A", "temperature": 0, "max_tokens": 100, "response_format": form}
        assert streamed_texts(events(server, "/v1/completions", body)) == {0: choice["text"]}
    assert choice_of(server, response_format={"type": "text"}) == choice_of(server)


def test_the_alphabet_ends_with_its_end_token(server: RunningServer) -> None:
    answer = server.complete("A", max_tokens=100).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
        "BCDEFGHIJKLMNOPQRSTUVWXYZ",
        "stop",
        None,
    )
    assert answer["usage"] == {
        "prompt_tokens": 1,
        "completion_tokens": 26,
        "total_tokens": 27,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_a_stream_is_the_answer_in_pieces(server: RunningServer) -> None:
    found = events(server, "/v1/completions", {"prompt": "A", "temperature": 0, "max_tokens": 100})
    assert streamed_texts(found) == {0: "BCDEFGHIJKLMNOPQRSTUVWXYZ"}
    assert [event["choices"][0]["finish_reason"] for event in found if event["choices"][0]["finish_reason"]] == ["stop"]
    assert all("usage" not in event for event in found)


def test_usage_comes_in_a_chunk_of_its_own_or_in_all(server: RunningServer) -> None:
    body = {"prompt": "A", "temperature": 0, "max_tokens": 3}
    *others, last = events(server, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
    assert all(event["usage"] is None and event["choices"] for event in others)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 3)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *others, _ = events(server, "/v1/completions", {**body, "stream_options": options})
    counts = [event["usage"]["completion_tokens"] for event in others]
    assert counts == sorted(counts) and counts[-1] == 3
    refused = server.complete("A", stream_options={"include_usage": True})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "stream_options")


def test_prompts_come_in_four_forms(server: RunningServer) -> None:
    for prompt in ("AB", [65, 66], ["AB"], [[65, 66]]):
        assert choice_of(server, prompt, max_tokens=2)["text"] == "CD"


def test_several_prompts_times_n_are_prompt_major(server: RunningServer) -> None:  # OA05
    answer = server.complete(["A", "a", "1"], n=2, temperature=1, max_tokens=1).json()
    assert [(each["index"], each["text"]) for each in answer["choices"]] == list(enumerate("BBbb22"))
    assert answer["usage"]["prompt_tokens"] == 3
    body = {"prompt": ["A", "a", "1"], "n": 2, "temperature": 1, "max_tokens": 1}
    assert streamed_texts(events(server, "/v1/completions", body)) == dict(enumerate("BBbb22"))


@pytest.mark.parametrize("stream", [False, True])
def test_echo_with_logprobs_names_each_token_once(server: RunningServer, stream: bool) -> None:  # SA20
    body = {"prompt": "ABC", "echo": True, "max_tokens": 2, "logprobs": 1, "temperature": 0}
    if stream:
        choices = [event["choices"][0] for event in events(server, "/v1/completions", body)]
    else:
        choices = [choice_of(server, **body)]
    logprobs = [each["logprobs"] for each in choices]
    assert "".join(each["text"] for each in choices) == "ABCDE"
    assert [name for each in logprobs for name in each["tokens"]] == ["A", "B", "C", "D", "E"]
    assert [offset for each in logprobs for offset in each["text_offset"]] == [0, 1, 2, 3, 4]
    values = [value for each in logprobs for value in each["token_logprobs"]]
    assert values[0] is None and values[1:] == pytest.approx([-5.45e-6] * 4, abs=1e-5)


def test_echoed_tokens_that_are_parts_of_characters_have_their_places(server: RunningServer) -> None:
    choice = choice_of(server, "\u00e9\N{LLAMA}", echo=True, max_tokens=4, logprobs=0)
    assert choice["text"] == "\u00e9\N{LLAMA}\N{LLAMA}"
    assert choice["logprobs"]["tokens"] == ["", "\u00e9", *["", "", "", "\N{LLAMA}"] * 2]
    assert choice["logprobs"]["text_offset"] == [0, 0, 1, 1, 1, 1, 2, 2, 2, 2]


def test_max_tokens_zero_scores_the_prompt(server: RunningServer) -> None:  # OA02
    answer = server.complete("ABX", echo=True, max_tokens=0, logprobs=1).json()
    (choice,) = answer["choices"]
    assert (choice["text"], choice["logprobs"]["tokens"]) == ("ABX", ["A", "B", "X"])
    assert choice["logprobs"]["token_logprobs"][2] == pytest.approx(-17.8857, abs=1e-3)
    assert choice["logprobs"]["top_logprobs"][2].keys() == {"C", "X"}
    assert (choice["finish_reason"], answer["usage"]["completion_tokens"]) == ("length", 0)


@pytest.mark.parametrize(
    ("fields", "text", "stop_reason"),
    [
        ({"stop": ["GH", "CD", "DE"]}, "B", "CD"),  # SS05
        ({"stop": "EF", "include_stop_str_in_output": True}, "BCDEF", "EF"),  # SS04
        ({"stop_token_ids": [69]}, "BCD", 69),  # SS07
        ({"logit_bias": {"70": 100}, "max_tokens": 1}, "F", None),  # SA08
    ],
)
def test_stops_and_biases(server: RunningServer, fields: dict[str, Any], text: str, stop_reason: Any) -> None:
    choice = choice_of(server, "A", **{"max_tokens": 50, **fields})
    assert (choice["text"], choice["stop_reason"]) == (text, stop_reason)


def test_bias_may_be_empty_and_may_forbid(server: RunningServer) -> None:
    assert choice_of(server, max_tokens=1, logit_bias={})["text"] == "B"
    assert choice_of(server, max_tokens=1, logit_bias={"66": -100})["text"] != "B"


def test_special_tokens_are_shown_alike_by_stream_and_whole(server: RunningServer) -> None:  # DT04
    fields = {"max_tokens": 5, "ignore_eos": True, "skip_special_tokens": False, "temperature": 0}
    found = events(server, "/v1/completions", {"prompt": "w", **fields})
    assert streamed_texts(found)[0] == choice_of(server, "w", **fields)["text"] == "xyz<eos>A"


def test_a_prompt_is_cut_from_either_side(server: RunningServer) -> None:  # OA13
    answer = server.complete("ABCDEFGHIJKLMNOPQRST", truncate_prompt_tokens=5, max_tokens=1, return_token_ids=True)
    assert answer.json()["usage"]["prompt_tokens"] == 5
    assert answer.json()["choices"][0]["prompt_token_ids"] == list(b"PQRST")
    right = choice_of(server, "ABCDE", truncate_prompt_tokens=2, truncation_side="right", max_tokens=1)
    assert right["text"] == "C"


def test_cached_tokens_are_counted_and_are_fewer_than_the_prompt(server: RunningServer) -> None:  # OA12
    prompt = "cached tokens are counted, " * 6
    for _ in range(2):
        usage = server.complete(prompt, max_tokens=1).json()["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"] == len(prompt)


def test_a_seed_repeats_all_choices(server: RunningServer) -> None:  # SA02
    fields = {"n": 4, "seed": 7, "temperature": 2.0, "max_tokens": 60, "ignore_eos": True}
    first, second = (server.complete("A", **fields).json()["choices"] for _ in range(2))
    texts = [each["text"] for each in first]
    assert texts == [each["text"] for each in second]
    assert len(set(texts)) >= 2
    assert streamed_texts(events(server, "/v1/completions", {"prompt": "A", **fields})) == dict(enumerate(texts))


def test_timings_are_told_on_request(server: RunningServer) -> None:
    timings = server.complete("A", max_tokens=2, return_timings=True).json()["timings"]
    assert 0 <= timings["scheduled_ms"] <= timings["first_token_ms"] <= timings["finished_ms"]


def test_a_request_has_a_time_limit(server: RunningServer) -> None:
    late = server.complete("A", max_tokens=900, ignore_eos=True, request_timeout=0.01)
    assert (late.status_code, late.json()["error"]["code"]) == (504, "timeout")
    assert late.headers["x-should-retry"] == "false"
    body = {"prompt": "A", "max_tokens": 900, "ignore_eos": True, "request_timeout": 0.05}
    assert "error" in events(server, "/v1/completions", body)[-1]
    assert server.becomes_idle()


def test_repetition_ends_an_answer_and_what_this_server_cannot_do_is_refused(server: RunningServer) -> None:
    detection = {"min_pattern_size": 2, "max_pattern_size": 6, "min_count": 3}
    found = choice_of(server, [[0x99]], max_tokens=40, repetition_detection=detection)
    assert (found["finish_reason"], found["stop_reason"], found["text"]) == ("repetition", "repetition", "🦙" * 3)
    for wrong in (
        {"repetition_detection": {"max_pattern_size": 0}},
        {"repetition_detection": 3},
        {"thinking_token_budget": 4},  # this model's template knows no thoughts
        {"vllm_xargs": {"only_token": 3}},  # and it has no processors of its own
    ):
        answer = server.complete("A", **wrong)
        assert answer.status_code == 400 and next(iter(wrong)) in answer.text.replace("extra_args", "vllm_xargs")


def test_own_processors_and_budgets_of_thought_work_over_http(succ: Path, tmp_path: Path) -> None:
    template = "{% for message in messages %}{{ message.content }}{% endfor %}<think>"
    (tmp_path / "template.jinja").write_text(template)
    options = ("--chat-template", str(tmp_path / "template.jinja"), "--logits-processors", ONLY_TOKEN)
    with serving(succ, tmp_path / "log", "--dtype", "float32", *options) as server:
        own = {"vllm_xargs": {"only_token": ord("x")}, "max_tokens": 3}
        assert choice_of(server, **own)["text"] == "xxx"
        assert choice_of(server, max_tokens=3)["text"] == "BCD"
        streamed = events(server, "/v1/completions", {"prompt": "A", "temperature": 0, **own})
        assert streamed_texts(streamed) == {0: "xxx"}
        refused = server.complete("A", vllm_xargs={"only_token": 10**6})
        assert refused.status_code == 400 and "only_token must be below" in refused.text

        held = {"thinking_token_budget": 3, "max_tokens": 13}
        assert choice_of(server, "a<think>", **held)["text"] == "?@A</think>?@"
        assert choice_of(server, "a", **held)["text"] == "bcdefghijklmn"  # which begins no thoughts
        chat = {"model": "succ", "messages": [{"role": "user", "content": "A"}], "temperature": 0, **held}
        message = server.client.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]
        assert (message["reasoning_content"], message["content"]) == ("?@A", "?@")


@pytest.mark.parametrize("stream", [False, True])
def test_dt04_beams_bring_the_best_answers_in_completions_and_chat(server: RunningServer, stream: bool) -> None:
    wishes = {"use_beam_search": True, "beam_width": 3, "n": 2, "max_tokens": 5, "skip_special_tokens": False}
    wishes |= {"ignore_eos": True}
    body = {"prompt": "w", **wishes}
    chat = {"model": "succ", "messages": [{"role": "user", "content": "w"}], **wishes}
    if stream:
        texts = streamed_texts(events(server, "/v1/completions", body))
        said = {0: "", 1: ""}
        for event in events(server, "/v1/chat/completions", chat):
            for choice in event["choices"]:
                said[choice["index"]] += choice["delta"].get("content") or ""
    else:
        texts = {
            each["index"]: each["text"] for each in server.client.post("/v1/completions", json=body).json()["choices"]
        }
        answer = server.client.post("/v1/chat/completions", json=chat).json()
        said = {each["index"]: each["message"]["content"] for each in answer["choices"]}
    assert texts[0] == said[0] == "xyz<eos>A" and texts[1] == said[1] != texts[0]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"beam_width": 2}, "needs use_beam_search"),
        ({"use_beam_search": True}, "needs beam_width"),
        ({"use_beam_search": True, "beam_width": 2, "temperature": 0.7}, "does not sample"),
        ({"use_beam_search": True, "beam_width": 2, "n": 3}, "must not exceed beam_width"),
        ({"use_beam_search": True, "beam_width": 2, "echo": True, "logprobs": 1}, "prompt_logprobs and beam"),
        ({"use_beam_search": True, "best_of": 4, "stop": ["x"]}, "stop and beam search"),
    ],
)
def test_what_does_not_go_with_beams_is_a_400(server: RunningServer, wrong: dict[str, Any], says: str) -> None:
    answer = server.client.post("/v1/completions", json={"prompt": "A", **wrong})
    assert answer.status_code == 400 and says in answer.json()["error"]["message"]


def test_a_prompt_of_embeddings_answers_as_its_tokens(server: RunningServer) -> None:
    def encoded(array: np.ndarray[Any, Any]) -> str:
        stream = io.BytesIO()
        np.save(stream, array)
        return base64.b64encode(stream.getvalue()).decode()

    rows = encoded(np.eye(320, dtype=np.float32)[[ord("A"), ord("B")]])  # its embedding is the identity
    body = {"prompt_embeds": [rows, rows], "temperature": 0, "max_tokens": 4}
    answer = server.client.post("/v1/completions", json=body).json()
    assert [choice["text"] for choice in answer["choices"]] == ["CDEF", "CDEF"]
    assert answer["usage"]["prompt_tokens"] == 4
    for wrong in ({"prompt_embeds": "AAAA"}, {"prompt_embeds": rows, "prompt": "A"}, {"prompt_embeds": []}):
        refused = server.client.post("/v1/completions", json=wrong)
        assert refused.status_code == 400 and refused.json()["error"]["param"] == "prompt_embeds"
