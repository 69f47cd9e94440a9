"""For random parameters: the stream, the whole answer and the offline answer are the same, token for token."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.frontend.llm import LLM
from octavo.words.sampling_params import SamplingParams
from tests.server.conftest import MODEL, RunningServer
from tests.server.test_completions import events

NUM_CASES = 24


@pytest.fixture(scope="module")
def offline(succ: Path) -> Iterator[LLM]:
    with LLM(
        str(succ), dtype="float32", max_model_len=1024, kv_cache_memory_bytes="16MiB", disable_log_stats=True
    ) as llm:
        yield llm


def random_case(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A prompt and parameters; the seed is always given, so that an answer can be repeated."""
    prompt = "".join(rng.choices("ABCWXYZabcwxyz é🦙", k=rng.randint(1, 60)))
    fields: dict[str, Any] = {"seed": rng.randrange(2**40), "max_tokens": rng.randint(1, 60)}
    choices: dict[str, list[Any]] = {
        "temperature": [0.0, 0.7, 1.0, 2.0],
        "top_p": [0.5, 0.95],
        "top_k": [1, 5, 50],
        "min_p": [0.05],
        "presence_penalty": [1.0],
        "frequency_penalty": [-0.5, 1.5],
        "repetition_penalty": [0.8, 1.3],
        "stop": ["EF", ["XY", "z", "é"]],
        "stop_token_ids": [[70]],
        "include_stop_str_in_output": [True],
        "ignore_eos": [True],
        "min_tokens": [1],
        "logprobs": [0, 3],
        "skip_special_tokens": [False],
        "logit_bias": [{"70": 10.0, "66": -100.0}],
        "bad_words": [["D"]],
    }
    for name, values in choices.items():
        if rng.random() < 0.3:
            fields[name] = rng.choice(values)
    if fields.get("temperature", 1.0) and rng.random() < 0.3:
        fields["n"] = rng.randint(2, 3)
    return prompt, fields


def offline_answer(llm: LLM, prompt: str, fields: dict[str, Any]) -> list[tuple[Any, ...]]:
    given = dict(fields)
    if "logit_bias" in given:
        given["logit_bias"] = {int(key): value for key, value in given["logit_bias"].items()}
    (output,) = llm.generate([prompt], SamplingParams(**given), use_tqdm=False)
    return [
        (choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason, _chosen(choice))
        for choice in output.outputs
    ]


def _chosen(choice: Any) -> list[float] | None:
    if choice.logprobs is None:
        return None
    return [entry[token_id].logprob for token_id, entry in zip(choice.token_ids, choice.logprobs, strict=True)]


def whole_answer(server: RunningServer, body: dict[str, Any]) -> list[tuple[Any, ...]]:
    answer = server.client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [
        (each["text"], each["token_ids"], each["finish_reason"], each["stop_reason"], _values(each))
        for each in answer.json()["choices"]
    ]


def _values(choice: dict[str, Any]) -> list[float] | None:
    return choice["logprobs"] and choice["logprobs"]["token_logprobs"]


def streamed_answer(server: RunningServer, body: dict[str, Any]) -> list[tuple[Any, ...]]:
    found: dict[int, list[Any]] = {}
    for event in events(server, "/v1/completions", body):
        for each in event["choices"]:
            known = found.setdefault(each["index"], ["", [], None, None, None])
            known[0] += each["text"]
            known[1] += each["token_ids"]
            known[2], known[3] = each["finish_reason"], each["stop_reason"]
            if each["logprobs"]:
                known[4] = (known[4] or []) + each["logprobs"]["token_logprobs"]
    return [tuple(found[index]) for index in sorted(found)]


@pytest.mark.parametrize("seed", range(NUM_CASES))
def test_stream_whole_and_offline_agree(server: RunningServer, offline: LLM, seed: int) -> None:
    prompt, fields = random_case(random.Random(seed))
    body = {"prompt": prompt, "return_token_ids": True, **fields}
    expected = offline_answer(offline, prompt, fields)
    assert whole_answer(server, body) == expected, fields
    assert streamed_answer(server, body) == expected, fields


# The other interfaces: a conversation of this model's is its texts, joined

CONVERSATION_FIELDS = {"seed", "max_tokens", "temperature", "top_p", "top_k", "stop", "ignore_eos"}


def chat_answers(server: RunningServer, prompt: str, fields: dict[str, Any]) -> tuple[Any, Any]:
    """Whole, and from a stream."""
    given = {**fields, "model": MODEL, "messages": [{"role": "user", "content": prompt}], "return_token_ids": True}
    answer = server.client.post("/v1/chat/completions", json=given)
    assert answer.status_code == 200, answer.text
    whole = [
        (each["message"]["content"], each["token_ids"], each["finish_reason"], each["stop_reason"])
        for each in answer.json()["choices"]
    ]
    found: dict[int, list[Any]] = {}
    for event in events(server, "/v1/chat/completions", given):
        for each in event["choices"]:
            known = found.setdefault(each["index"], ["", [], None, None])
            known[0] += each["delta"].get("content") or ""
            known[1] += each["token_ids"]
            known[2], known[3] = each["finish_reason"], each.get("stop_reason")
    return whole, [tuple(found[index]) for index in sorted(found)]


def texts_of(server: RunningServer, path: str, body: dict[str, Any]) -> tuple[str, str]:
    """The text of a response or a message, whole and from its stream."""
    answer = server.client.post(path, json=body).json()
    whole = answer["content"] if "content" in answer else answer["output"][0]["content"]
    frames = server.client.post(path, json={**body, "stream": True}).text.split("\n\n")
    deltas = [json.loads(frame.split("data: ")[1])["delta"] for frame in frames if "_delta\n" in frame]
    deltas += [json.loads(frame.split("data: ")[1])["delta"] for frame in frames if "output_text.delta\n" in frame]
    return whole[0]["text"], "".join(each if isinstance(each, str) else each.get("text", "") for each in deltas)


@pytest.mark.parametrize("seed", range(100, 100 + NUM_CASES // 3))
def test_every_interface_gives_the_same_answer(server: RunningServer, offline: LLM, seed: int) -> None:
    prompt, fields = random_case(random.Random(seed))
    fields.pop("logprobs", None)
    expected = [choice[:4] for choice in offline_answer(offline, prompt, fields)]
    whole, streamed = chat_answers(server, prompt, fields)
    assert whole == streamed == expected, fields

    shared = {name: value for name, value in fields.items() if name in CONVERSATION_FIELDS}
    ((text, *_),) = offline_answer(offline, prompt, shared)
    given = {name: value for name, value in shared.items() if name not in ("stop", "max_tokens")}
    stops = [shared["stop"]] if isinstance(shared.get("stop"), str) else shared.get("stop")
    messages = [{"role": "user", "content": prompt}]
    message = {**given, "model": MODEL, "messages": messages, "max_tokens": shared["max_tokens"]}
    response = {**given, "model": MODEL, "input": prompt, "max_output_tokens": shared["max_tokens"], "stop": stops}
    assert texts_of(server, "/v1/messages", {**message, "stop_sequences": stops}) == (text, text), fields
    assert texts_of(server, "/v1/responses", response) == (text, text), fields
