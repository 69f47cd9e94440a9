from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from octavo.server.output_events import Chain
from octavo.server.reasoning_parsers.think import parser_of_style
from octavo.server.tool_parsers.table import tool_format
from octavo.tokenizer.reasoning_style import REASONING_STYLES, ReasoningStyle, reasoning_style, style_of_template
from octavo.words.errors import ConfigError
from tests.server.parsed_output import ParsedOutput, parse


def read(text: str, style: str = "think", prompt: str = "") -> tuple[str | None, str | None]:
    """(reasoning, content), which is the same for every cut in two, single characters and random groupings."""
    whole = parse(parser_of_style(reasoning_style(style), prompt), text)
    for cuts in [*([cut] for cut in range(len(text) + 1)), list(range(1, len(text))), *groupings(text)]:
        parser, output = parser_of_style(reasoning_style(style), prompt), ParsedOutput()
        for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            output.add(parser.feed(text[start:end]))
        output.add(parser.end())
        assert output == whole, f"cut at {cuts}"
    return whole.reasoning, whole.content


def groupings(text: str, number: int = 100) -> Iterator[list[int]]:
    """Random places to cut a text at."""
    random_numbers = random.Random(text)
    for _ in range(number if text else 0):
        yield sorted(random_numbers.sample(range(len(text)), random_numbers.randint(0, len(text))))


def parted(text: str, style: ReasoningStyle, *, begins_inside: bool) -> tuple[str, str]:
    """(reasoning, content) of a whole text, found by its first tags alone; blanks beside them go with them."""
    text = text.lstrip() if begins_inside else text
    before, begin, rest = text.partition(style.begin)
    if begins_inside and (not begin or style.end in before):
        thoughts, end, content = text.partition(style.end)
        return (thoughts.rstrip(), content.lstrip()) if end else (thoughts, "")
    if not begin:
        return "", text
    thoughts, end, content = rest.lstrip().partition(style.end)
    thoughts = thoughts.rstrip() if end else thoughts
    before, content = before.rstrip(), content.lstrip()
    return (before + thoughts, content) if begins_inside else (thoughts, before + content)


def test_tc11_thoughts_that_the_template_opened() -> None:
    prompt = "<|im_start|>assistant\n<think>\n"
    assert read("x</think>y", prompt=prompt) == ("x", "y")
    assert read("<think>x</think>y", prompt=prompt) == ("x", "y")
    assert read("x", prompt=prompt) == ("x", None)


def test_tc11_thoughts_that_the_template_closed() -> None:
    assert read("y < z </think>", prompt="<think>\n\n</think>\n\n") == (None, "y < z </think>")


def test_thoughts_that_the_model_opens() -> None:
    assert read("<think>\nx\n</think>\n\ny") == ("x", "y")
    assert read("y") == (None, "y")
    assert read("<think>x") == ("x", None)
    assert read("") == (None, None)


def test_deepseek_thinks_without_saying_so() -> None:
    assert read("x</think>y", "deepseek_r1") == ("x", "y")
    assert read("x", "deepseek_r1") == ("x", None)


def test_a_style_has_its_own_tags() -> None:
    assert read("[THINK]x[/THINK]y", "mistral") == ("x", "y")


def test_text_behind_the_thoughts_is_content_whatever_it_says() -> None:
    assert read("<think>x</think>a <think> b </think> c") == ("x", "a <think> b </think> c")


def test_angle_brackets_in_thoughts_stay() -> None:
    assert read("<think>if a < b: </thin</think>y") == ("if a < b: </thin", "y")


@pytest.mark.parametrize("name", ["qwen3", "think"])
def test_tc11_qwen3_thinks_as_its_template_says(name: str) -> None:
    answer = "<|im_start|>assistant\n"  # the model opens the thoughts itself
    assert read("<think>\nx < y\n</think>\n\n<b> z", name, answer) == ("x < y", "<b> z")
    assert read("<think>\n\n</think>\n\ny", name, answer) == (None, "y")
    assert read("<think>\nx is cut", name, answer) == ("x is cut", None)
    assert read("y alone", name, answer) == (None, "y alone")
    opened = f"{answer}<think>\n"
    assert read("x\n</think>\n\ny", name, opened) == ("x", "y")
    assert read("x is cut </thi", name, opened) == ("x is cut </thi", None)
    closed = f"{answer}<think>\n\n</think>\n\n"  # enable_thinking=false
    assert read("y", name, closed) == (None, "y")
    assert read("a <think> b </think> c", name, closed) == (None, "a <think> b </think> c")


@pytest.mark.parametrize("is_opened", [False, True])
@pytest.mark.parametrize("name", REASONING_STYLES)
def test_random_text_less_its_tags_is_what_was_said(name: str, is_opened: bool) -> None:
    random_numbers = random.Random(3)
    style = reasoning_style(name)
    begins_inside = is_opened or style.always_begins_inside
    for _ in range(50):
        parts = ["a", "b", " ", "\n", "<", style.begin, style.end, style.begin[:4], style.end[:-1], style.end[1:]]
        text = "".join(random_numbers.choice(parts) for _ in range(20))
        reasoning, content = read(text, name, style.begin if is_opened else "")
        assert (reasoning or "", content or "") == parted(text, style, begins_inside=begins_inside), text


def test_tools_are_read_behind_the_thoughts() -> None:
    call = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    parser = Chain(parser_of_style(reasoning_style("think"), ""), tool_format("hermes").parser())
    output = parse(parser, f"<think>use {call}?</think>{call}")
    assert output.reasoning == f"use {call}?"
    assert [(each.name, each.arguments) for each in output.calls] == [("f", "{}")]


def test_the_chat_template_tells_the_style() -> None:
    assert style_of_template("{% if '<think>' in x %}</think>") == REASONING_STYLES["think"]
    assert style_of_template("content.split('</think>')") == REASONING_STYLES["deepseek_r1"]
    assert style_of_template("{{ messages }}") is None and style_of_template(None) is None


def test_an_unknown_style_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="deepseek_r1"):
        reasoning_style("nope")
