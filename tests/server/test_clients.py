"""Agents' clients that nobody here wrote, on the model that counts and, where it is there, on a real one.

What they are told to expect holds whatever the model says: calls that must come parse.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import openai
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from octavo.checkpoint.catalogue import models_dir
from tests.server.conftest import CITY, MODEL, RunningServer, serving

REAL_MODEL = "qwen2.5-coder-0.5b"
INSTRUCTOR = "instructor==1.17.0"
QUESTION = "What is the weather in Rome?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
WEATHER: Any = {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITY}}


class Place(BaseModel, extra="forbid"):
    city: Literal["Rome", "Oslo"]
    country: Literal["Italy", "Norway"]


@pytest.fixture(scope="module", params=["succ", pytest.param(REAL_MODEL, marks=pytest.mark.models)])
def speaker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    if request.param == "succ":
        yield request.getfixturevalue("tool_server")
        return
    if not (models_dir() / REAL_MODEL).is_dir():
        pytest.skip(f"{REAL_MODEL} is not in the model cache")
    room = ("--max-model-len", "2048", "--kv-cache-memory-bytes", "256MiB")
    with serving(REAL_MODEL, tmp_path_factory.mktemp("speaker") / "log", *room) as server:
        yield server


@pytest.fixture
def client(speaker: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{speaker.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def test_openai_parses_a_format_in_both_of_its_interfaces(client: openai.OpenAI) -> None:
    chat = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=Place)
    assert isinstance(chat.choices[0].message.parsed, Place)
    response = client.responses.parse(model=MODEL, input=QUESTION, text_format=Place)
    assert isinstance(response.output_parsed, Place)


def test_openai_adds_up_streamed_calls(client: openai.OpenAI) -> None:
    required: Any = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, **required) as stream:
        stream.until_done()
        (choice,) = stream.get_final_completion().choices
    (call,) = choice.message.tool_calls or ()
    assert choice.finish_reason == "tool_calls"
    assert json.loads(call.function.arguments)["city"] in CITY["properties"]["city"]["enum"]  # type: ignore[index]


def test_a_conversation_goes_on_with_the_result_of_a_call(client: openai.OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "weather"}}
    first = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[WEATHER], tool_choice=named)
    message = first.choices[0].message
    assert message.tool_calls
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "It is sunny in Rome."}
    messages: Any = [*MESSAGES, message.to_dict(), result]
    second = client.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], tool_choice="none", max_tokens=64, temperature=0
    )
    assert second.choices[0].message.content and not second.choices[0].message.tool_calls


def test_openai_goes_on_from_the_summary_of_a_conversation(client: openai.OpenAI) -> None:
    said: Any = [
        {"role": "user", "content": "We agreed to launch on Tuesday, and to notify support first."},
        {"role": "assistant", "content": "Understood: the launch is on Tuesday, and support is notified before."},
    ]
    compacted = client.responses.compact(model=MODEL, input=said)
    *kept, summary = [item.to_dict(warnings=False) for item in compacted.output]
    assert [item["role"] for item in kept] == ["user"] and summary["type"] == "compaction"
    question: Any = [*kept, summary, {"role": "user", "content": "When do we launch?"}]
    answer = client.responses.create(model=MODEL, input=question, max_output_tokens=40, temperature=0)
    assert answer.output_text


def test_anthropic_adds_up_streamed_calls(speaker: RunningServer) -> None:
    tool: Any = {"name": "weather", "description": "The weather.", "input_schema": CITY}
    choice: Any = {"type": "any", "disable_parallel_tool_use": True}
    with (
        anthropic.Anthropic(base_url=speaker.url, api_key="none", max_retries=0, timeout=120) as client,
        client.messages.stream(
            model=MODEL, max_tokens=500, messages=MESSAGES, tools=[tool], tool_choice=choice
        ) as stream,
    ):
        message = stream.get_final_message()
    (call,) = message.content
    assert call.type == "tool_use" and message.stop_reason == "tool_use"
    assert call.input["city"] in CITY["properties"]["city"]["enum"]  # type: ignore[index]


@pytest.mark.parametrize("kind", [OpenAIChatModel, OpenAIResponsesModel])
def test_pydantic_ai_gets_what_it_asks_for(speaker: RunningServer, kind: Any) -> None:
    async def place() -> Any:
        async with openai.AsyncOpenAI(base_url=f"{speaker.url}/v1", api_key="none", max_retries=0) as client:
            agent = Agent(kind(MODEL, provider=OpenAIProvider(openai_client=client)), output_type=Place)
            return (await agent.run(QUESTION)).output

    assert isinstance(asyncio.run(place()), Place)


@pytest.fixture(scope="session")
def python_with_instructor() -> Path:
    """An environment of its own, made once beside the models: instructor asks for an older openai than ours."""
    folder = models_dir().parent / "clients" / INSTRUCTOR.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "complete").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [str(python), "-m", "pip", "install", "--quiet", INSTRUCTOR]
        done = subprocess.run(install, capture_output=True, text=True, timeout=600, check=False)
        if done.returncode:
            pytest.skip(f"instructor cannot be had: {done.stderr.strip()[-300:]}")
        (folder / "complete").touch()
    return python


@pytest.mark.models
def test_instructor_gets_what_it_asks_for(speaker: RunningServer, python_with_instructor: Path) -> None:
    program = Path(__file__).with_name("instructor_client.py")
    command = [str(python_with_instructor), str(program), f"{speaker.url}/v1", MODEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    places = [Place.model_validate_json(line) for line in done.stdout.splitlines()]
    assert len(places) == 4, "calls and formats, each in one piece and as a stream"


def test_the_example_calls_a_function(speaker: RunningServer) -> None:
    example = Path(__file__).parent.parent.parent / "examples" / "tool_calls.py"
    done = subprocess.run(
        [sys.executable, str(example), f"{speaker.url}/v1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("weather(") and "It is sunny in" in done.stdout
