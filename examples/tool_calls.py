"""Let a model call a function: octavo serve qwen2.5-coder-0.5b, then python examples/tool_calls.py."""

from __future__ import annotations

import json
import sys
from typing import Any

from openai import OpenAI

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def weather(city: str) -> str:
    return f"It is sunny in {city}."


def main() -> None:
    client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1", api_key="none")
    model = client.models.list().data[0].id
    asked = client.responses.create(
        model=model,
        input="What is the weather in Rome?",
        tools=[WEATHER],
        tool_choice="required",  # held to the schema; "auto" leaves it to the model
        parallel_tool_calls=False,
    )
    results: Any = []
    for item in asked.output:
        if item.type == "function_call":
            said = weather(**json.loads(item.arguments))
            print(f"{item.name}({item.arguments}) -> {said}")
            results.append({"type": "function_call_output", "call_id": item.call_id, "output": said})
    answer = client.responses.create(
        model=model,
        input=results,
        previous_response_id=asked.id,
        tools=[WEATHER],
        tool_choice="none",
        max_output_tokens=64,
    )
    print(answer.output_text)


if __name__ == "__main__":
    main()
