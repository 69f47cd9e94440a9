"""Asks a server by instructor, in an environment of its own: prints each answer that it parsed as a line of JSON."""

from __future__ import annotations

import sys
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel

QUESTION: Any = [{"role": "user", "content": "What is the weather in Rome?"}]


class Place(BaseModel, extra="forbid"):
    city: Literal["Rome", "Oslo"]
    country: Literal["Italy", "Norway"]


def main(url: str, model: str) -> None:
    fields: Any = {"model": model, "messages": QUESTION, "response_model": Place, "max_retries": 0, "temperature": 0}
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120) as client:
        for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
            asking = instructor.from_openai(client, mode=mode)
            print(asking.chat.completions.create(**fields).model_dump_json())
            *_, last = asking.chat.completions.create_partial(**fields)
            print(last.model_dump_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
