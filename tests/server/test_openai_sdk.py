"""OpenAI's own Python client against the server."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.server.conftest import MODEL, RunningServer


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "octavo"


def test_chat_and_its_stream(client: openai.OpenAI) -> None:
    messages: list = [{"role": "user", "content": "A"}]
    whole = client.chat.completions.create(model=MODEL, messages=messages, temperature=0)
    assert whole.choices[0].message.content == "BCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert whole.usage is not None and whole.usage.completion_tokens == 26
    stream = client.chat.completions.create(
        model=MODEL, messages=messages, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.choices[0].message.content
    assert last.usage == whole.usage


def test_several_choices_with_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": "A"}], n=3, max_tokens=2, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    for choice in answer.choices:
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [len(item.top_logprobs) for item in choice.logprobs.content] == [2, 2]


def test_completions_with_token_ids(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[65, 66], max_tokens=2, echo=True, temperature=0, logprobs=1)
    assert answer.choices[0].text == "ABCD"
    assert answer.choices[0].logprobs is not None and answer.choices[0].logprobs.tokens == ["A", "B", "C", "D"]


def test_closing_a_stream_ends_the_request(client: openai.OpenAI, server: RunningServer) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="A", max_tokens=1000, temperature=0, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert server.becomes_idle(5)


def test_errors_are_those_that_the_client_knows(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="nope", prompt="A")
    assert missing.value.code == "model_not_found"
    assert missing.value.request_id
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=MODEL, prompt="A", temperature=9)
    assert wrong.value.param == "temperature"


def test_an_error_inside_a_stream_is_raised(client: openai.OpenAI) -> None:
    stream = client.completions.create(
        model=MODEL, prompt="A", max_tokens=1000, stream=True, extra_body={"ignore_eos": True, "request_timeout": 0.05}
    )
    with pytest.raises(openai.APIError, match="within 0.05 s"):
        list(stream)


def test_the_example_talks_to_the_server(server: RunningServer) -> None:
    example = Path(__file__).parent.parent.parent / "examples" / "openai_client.py"
    done = subprocess.run(
        [sys.executable, str(example), f"{server.url}/v1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
