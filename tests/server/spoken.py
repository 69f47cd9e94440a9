"""Every format of calls as the model that counts can be made to write it, with markup that is special tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.succ import NUM_TEXT_TOKENS, SPECIAL_TOKENS

DEEPSEEK_MARKUP = (
    "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>",
)  # fmt: skip
HARMONY_MARKUP = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
MISTRAL_MARKUP = ("[TOOL_CALLS]", "[CALL_ID]", "[ARGS]", "[THINK]", "[/THINK]")
LLAMA_MARKUP = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
MARKUP = (*DEEPSEEK_MARKUP, *HARMONY_MARKUP, *MISTRAL_MARKUP, *LLAMA_MARKUP)
TOKENS = {**SPECIAL_TOKENS, **{text: NUM_TEXT_TOKENS + index for index, text in enumerate(MARKUP)}}

_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for message in messages %}{{ message.reasoning_content }}{{ message.content or '' }}{% endfor %}"
)


@dataclass(frozen=True)
class Answer:
    """What an answer says, and in the order thoughts, content, calls."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Spoken:
    """A server's ``options``, words that its template ``shows``, and the texts of its model with what they say."""

    options: tuple[str, ...]
    shows: str
    answers: Mapping[str, Answer]

    @property
    def template(self) -> str:
        return _TEMPLATE + "{# " + self.shows + " #}"

    @property
    def has_calls(self) -> bool:
        """Whether calls are looked for."""
        return any(answer.calls for answer in self.answers.values())


def spoken(text: str) -> dict[str, Any]:
    """Fields of a request that make the model write this, its markup as the special tokens that they are."""
    pieces = filter(None, re.split(f"({'|'.join(map(re.escape, MARKUP))})", text))
    said = (f"<[{TOKENS[piece]}]>" if piece in TOKENS else json.dumps(piece, ensure_ascii=False) for piece in pieces)
    return {"structured_outputs": {"grammar": f"start: {' '.join(said)}\n"}}


_CITY = '{"city": "Rome"}'
_CALLS = (("now", "{}"), ("weather", _CITY))
_THOUGHT = Answer("hm", "yes")
_ALL = Answer("hm", "hi", _CALLS)
_TAGGED = f'<tool_call>{{"name": "weather", "arguments": {_CITY}}}</tool_call>'
_OBJECTS = f'{{"name": "now", "arguments": {{}}}}, {{"name": "weather", "arguments": {_CITY}}}'
_PARAMETERS = f'{{"name": "now", "parameters": {{}}}}; {{"name": "weather", "parameters": {_CITY}}}'
_ANALYSIS = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
_TO_TOOLS = "<|start|>assistant".join(
    f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}<|call|>"
    for name, arguments in _CALLS
)
_TOOL_FIRST = "<|start|>assistant".join(
    f" to=functions.{name}<|channel|>commentary json<|message|>{arguments}<|call|>" for name, arguments in _CALLS
)
_BY_SEPARATOR = "".join(
    f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{arguments}<｜tool▁call▁end｜>" for name, arguments in _CALLS
)
_FENCED = "\n".join(
    f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```<｜tool▁call▁end｜>"
    for name, arguments in _CALLS
)

SPOKEN = {
    "mistral": Spoken(
        (),
        "[TOOL_CALLS] [THINK]",
        {
            f"[THINK]hm[/THINK]hi [TOOL_CALLS][{_OBJECTS}]": _ALL,
            f"[THINK]hm[/THINK]hi[TOOL_CALLS]now[ARGS]{{}}[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{_CITY}": _ALL,
            "[THINK]hm[/THINK]yes": _THOUGHT,
        },
    ),
    "deepseek": Spoken(
        (),
        "<｜tool▁call▁begin｜> <think>",
        {
            f"<think>hm</think>hi <｜tool▁calls▁begin｜>{_BY_SEPARATOR}<｜tool▁calls▁end｜>": _ALL,
            f"<think>hm</think>hi<｜tool▁calls▁begin｜>{_FENCED}<｜tool▁calls▁end｜>": _ALL,
            "<think>hm</think>yes": _THOUGHT,
        },
    ),
    "harmony": Spoken(
        (),
        "<|channel|> <|message|>",
        {
            f"{_ANALYSIS}<|channel|>commentary<|message|>hi<|end|><|start|>assistant{_TO_TOOLS}": _ALL,
            _TOOL_FIRST: Answer(calls=_CALLS),
            f"{_ANALYSIS}<|channel|>final<|message|>yes<|return|>": _THOUGHT,
        },
    ),
    "llama3_json": Spoken(
        ("--tool-call-parser", "llama3_json", "--reasoning-parser", "none"),
        "<tool_call> </tool_call> <think>",
        {
            f"<|python_tag|>{_PARAMETERS}": Answer(calls=_CALLS),
            _PARAMETERS: Answer(calls=_CALLS),
            "<think>hm</think>yes": Answer(content="<think>hm</think>yes"),
            _TAGGED: Answer(content=_TAGGED),
        },
    ),
    "pythonic": Spoken(
        ("--tool-call-parser", "pythonic"),
        "<tool_call> </tool_call> <think>",
        {
            "<|python_start|>[now(), weather(city='Rome')]<|python_end|>": Answer(calls=_CALLS),
            '<think>hm</think>[now(), weather(city="Rome")]': Answer("hm", calls=_CALLS),
            "<think>hm</think>yes": _THOUGHT,
            _TAGGED: Answer(content=_TAGGED),
        },
    ),
    "none": Spoken(
        ("--tool-call-parser", "none"),
        "<tool_call> </tool_call> <think>",
        {f"<think>hm</think>{_TAGGED}": Answer("hm", _TAGGED), "<think>hm</think>yes": _THOUGHT},
    ),
}
"""By their options: those without a flag are told by their template, the others in spite of it."""
