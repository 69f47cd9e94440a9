"""Every format by the same behaviours, in one piece and in all ways to cut the text."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from octavo.server.tool_parsers.table import TOOL_FORMATS, format_of_template, tool_format
from octavo.words.errors import ConfigError
from tests.server.parsed_output import ParsedOutput, parse

Call = tuple[str, dict[str, Any]]
AWKWARD = {"text": 'a{b}"c"\n</x> [1] \\ } ]'}
FOREIGN = {"q": "Zürich 東京 🦙"}
KINDS = {"a": 1, "b": -2.5, "c": True, "d": None, "e": [1, {"f": "g"}], "h": {"i": {}}}


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True)
class Written:
    """How a format writes calls; ``around``: whether content may stand before them."""

    write: Callable[[Sequence[Call]], str]
    around: bool = True
    lone: str = ""  # markup that begins a call and goes no further


def hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{dumps({'name': n, 'arguments': a})}\n</tool_call>" for n, a in calls)


def llama(calls: Sequence[Call]) -> str:
    return "; ".join(dumps({"name": n, "parameters": a}) for n, a in calls)


def mistral(calls: Sequence[Call]) -> str:
    return "[TOOL_CALLS]" + dumps([{"name": n, "arguments": a} for n, a in calls])


def mistral_by_name(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{n}[ARGS]{dumps(a)}" for n, a in calls)


def deepseek(calls: Sequence[Call]) -> str:
    inner = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{n}\n```json\n{dumps(a)}\n```<｜tool▁call▁end｜>" for n, a in calls
    )
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def deepseek_31(calls: Sequence[Call]) -> str:
    inner = "".join(f"<｜tool▁call▁begin｜>{n}<｜tool▁sep｜>{dumps(a)}<｜tool▁call▁end｜>" for n, a in calls)
    return f"<｜tool▁calls▁begin｜>{inner}<｜tool▁calls▁end｜>"


def harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{dumps(a)}<|call|>" for n, a in calls
    )


def pythonic(calls: Sequence[Call]) -> str:
    return "[" + ", ".join(f"{n}({', '.join(f'{k}={v!r}' for k, v in a.items())})" for n, a in calls) + "]"


WRITTEN = {
    "hermes": Written(hermes, lone="<tool_call"),
    "llama3_json": Written(llama, around=False, lone='{"name'),
    "mistral": Written(mistral, lone="[TOOL_CALLS]["),
    "mistral by name": Written(mistral_by_name, lone="[TOOL_CALLS]na"),
    "deepseek": Written(deepseek, lone="<｜tool▁call▁begin｜>fun"),
    "deepseek 3.1": Written(deepseek_31, lone="<｜tool▁call"),
    "harmony": Written(harmony, lone="<|chan"),
    "pythonic": Written(pythonic, around=False, lone="[f("),
}
formats = pytest.mark.parametrize("name", WRITTEN)


def read(name: str, text: str, cuts: Sequence[int] = ()) -> ParsedOutput:
    """The text cut at some places, through a parser of its own."""
    parser = tool_format(_format_name(name)).parser()
    output = ParsedOutput()
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        output.add(parser.feed(text[start:end]))
    output.add(parser.end())
    return output


def _format_name(name: str) -> str:
    return name.removesuffix(" by name").removesuffix(" 3.1")


def calls_of(output: ParsedOutput) -> list[Call]:
    return [(call.name, json.loads(call.arguments)) for call in output.calls]


EXAMPLES: dict[str, list[Call]] = {
    "one": [("weather", {"city": "Rome"})],
    "two": [("weather", {"city": "Rome"}), ("now", {})],
    "three, one name twice": [("f", {"x": 1}), ("g", {}), ("f", {"x": 2})],
    "no parameters": [("now", {})],
    "awkward text": [("say", AWKWARD)],
    "foreign text": [("find", FOREIGN)],
    "all kinds": [("f", KINDS)],
}


@formats
@pytest.mark.parametrize("example", EXAMPLES)
def test_calls_are_read_with_their_arguments(name: str, example: str) -> None:
    output = read(name, WRITTEN[name].write(EXAMPLES[example]))
    assert calls_of(output) == EXAMPLES[example]
    assert output.content is None


@formats
def test_tc06_arguments_keep_their_characters(name: str) -> None:
    (call,) = read(name, WRITTEN[name].write([("find", FOREIGN)])).calls
    assert "Zürich 東京 🦙" in call.arguments and "\\u" not in call.arguments


@formats
def test_plain_text_is_content_to_the_letter(name: str) -> None:
    for text in ("hello", "a < b and {not} [a] call", "  two lines\n\n", "x" * 5000, ""):
        output = read(name, text)
        assert (output.content or "", output.calls) == (text, [])


@formats
def test_tc09_text_before_a_call_stays_and_markup_does_not(name: str) -> None:
    if not WRITTEN[name].around:
        pytest.skip("an answer of this format is calls or content, never both")
    output = read(name, "hi " + WRITTEN[name].write([("f", {"x": 1})]))
    assert (output.content or "").strip() == "hi"
    assert calls_of(output) == [("f", {"x": 1})]


@formats
def test_tc09_markup_that_never_becomes_a_call_is_content(name: str) -> None:
    before = "hi " if WRITTEN[name].around else ""
    output = read(name, before + WRITTEN[name].lone)
    assert (output.content, output.calls) == (before + WRITTEN[name].lone, [])


@formats
def test_plain_angle_brackets_stream_without_delay(name: str) -> None:
    parser = tool_format(_format_name(name)).parser()
    output = ParsedOutput()
    for piece in ("if a", " < b", " then"):
        output.add(parser.feed(piece))
    assert output.content == "if a < b then"


@formats
def test_a_call_cut_off_by_length_keeps_what_was_said(name: str) -> None:
    if name == "pythonic":
        pytest.skip("read at its end only: what is cut off is content")
    text = WRITTEN[name].write([("f", {"city": "Rome", "text": "long"})])
    output = read(name, text[: text.index("Rome") + 2])
    assert [call.name for call in output.calls] == ["f"]
    assert output.calls[0].arguments.replace(" ", "").startswith('{"city":"Ro')


@formats
@pytest.mark.parametrize("example", ["two", "awkward text", "all kinds"])
def test_every_cut_in_two_gives_the_same(name: str, example: str) -> None:
    text = ("so: " if WRITTEN[name].around else "") + WRITTEN[name].write(EXAMPLES[example])
    whole = read(name, text)
    assert calls_of(whole) == EXAMPLES[example]
    for cut in range(len(text) + 1):
        assert read(name, text, [cut]) == whole, f"cut at {cut}"


@formats
def test_a_hundred_random_groupings_give_the_same(name: str) -> None:
    random_numbers = random.Random(7)
    for _ in range(100):
        example = random_numbers.choice(list(EXAMPLES.values()))
        text = ("so: " if WRITTEN[name].around else "") + WRITTEN[name].write(example)
        cuts = sorted(random_numbers.sample(range(len(text)), min(len(text), random_numbers.randint(1, 30))))
        assert read(name, text, cuts) == read(name, text)
        assert read(name, text, range(1, len(text))) == read(name, text), "one character at a time"


@formats
def test_tc10_hostile_text_takes_linear_time_and_loses_nothing(name: str) -> None:
    def seconds(text: str) -> float:
        start = time.perf_counter()
        parse(tool_format(_format_name(name)).parser(), text)
        return time.perf_counter() - start

    for unit in (WRITTEN[name].lone, "<", "{", "[", " ", '{"name": "', "<tool_call>{", '{"id": 1, "id": 2, '):
        text = unit * (200_000 // len(unit))
        assert seconds(text) < 5, "bounded against a quadratic parser, which takes minutes"


def test_tc04_a_call_without_arguments_has_none() -> None:
    for text in ('<tool_call>{"name":"now","arguments":{}}</tool_call>', '<tool_call>{"name":"now"}</tool_call>'):
        assert [(call.name, call.arguments) for call in read("hermes", text).calls] == [("now", "{}")]


def test_keys_may_come_in_any_order_and_arguments_as_text() -> None:
    for text in ('{"arguments": {"x": 1}, "name": "f"}', '{"name": "f", "arguments": "{\\"x\\": 1}"}'):
        assert calls_of(read("hermes", f"<tool_call>{text}</tool_call>")) == [("f", {"x": 1})]
    assert calls_of(read("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>')) == [("f", {})]


def test_what_is_no_call_between_tags_is_content_tags_and_all() -> None:
    for text in (
        "<tool_call>nonsense</tool_call>",
        '<tool_call>{"what": 1}</tool_call> then',
        "<tool_call>{}",
        "hi <tool_call>x",
    ):
        output = read("hermes", text)
        assert (output.content, output.calls) == (text, [])


def test_content_goes_on_behind_a_call() -> None:
    output = read("hermes", f"a {hermes([('f', {})])}\n\nb {hermes([('g', {})])} \n")
    assert (output.content, [call.name for call in output.calls]) == ("ab", ["f", "g"])


def test_llama_writes_a_tag_before_a_call_or_none() -> None:
    assert calls_of(read("llama3_json", '<|python_tag|>{"name": "f", "parameters": {"x": 1}}')) == [("f", {"x": 1})]
    output = read("llama3_json", '{"city": "Rome"}')
    assert (output.content, output.calls) == ('{"city": "Rome"}', [])


def test_harmony_has_thoughts_comments_and_an_answer() -> None:
    text = (
        "<|channel|>analysis<|message|>hm, tools<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        '<|constrain|>json<|message|>{"x": 1}<|call|>'
    )
    output = read("harmony", text)
    assert (output.reasoning, output.content, calls_of(output)) == ("hm, tools", None, [("f", {"x": 1})])
    text = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>yes<|return|>"
    output = read("harmony", text)
    assert (output.reasoning, output.content, output.calls) == ("hm", "yes", [])


def test_pythonic_values_are_values_not_programs() -> None:
    for text in ("[f(x=__import__('os'))]", "[f(1)]", "[f(**{})]", "[1, 2]", "[f(x=1)] and more", "[" * 300):
        output = read("pythonic", text)
        assert (output.content, output.calls) == (text, [])


TOOLS = [
    {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "now"},
]


@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_format_writes_rules_that_compile(name: str) -> None:
    from octavo.control.structured_output.backends.llguidance import check_grammar
    from octavo.words.structured_outputs import StructuredOutputParams

    for several in (False, True):
        check_grammar(StructuredOutputParams(grammar=tool_format(name).grammar(TOOLS, several=several)))


def held_to(grammar: str, text: str) -> str:
    """As much of a text as the rules let a model with one token per byte write."""
    from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend
    from octavo.words.structured_outputs import StructuredOutputParams

    matcher = LLGuidanceBackend(Bytes(), [256]).compile(StructuredOutputParams(grammar=grammar))
    written = bytes(itertools.takewhile(lambda byte: matcher.accept([byte]), text.encode()))
    return written.decode()


class Bytes:
    """A vocabulary of bytes, and an end."""

    num_text_tokens = 257
    special_ids = frozenset({256})

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""


def test_a_call_holds_to_its_schema_once_it_begins_in_any_text() -> None:
    grammar = tool_format("hermes").open_grammar(TOOLS)
    assert grammar is not None
    fine = 'a <b> <tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call> c\n'
    assert held_to(grammar, fine + fine) == fine + fine
    assert held_to(grammar, fine + '<tool_call>\n{"name": "wind') == fine + '<tool_call>\n{"name": "w'
    assert held_to(grammar, '<tool_call>\n{"name": "weather", "arguments": {"city": 7').endswith('{"city": ')
    assert [name for name in TOOL_FORMATS if tool_format(name).open_grammar(TOOLS)] == ["hermes"]


def test_an_unknown_format_is_refused_with_the_list() -> None:
    with pytest.raises(ConfigError, match="hermes"):
        tool_format("nope")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("...<tool_call>\\n{...}</tool_call>", "hermes"),
        ('<|start_header_id|> {"name": f, "parameters": {}}', "llama3_json"),
        ("[TOOL_CALLS] [INST]", "mistral"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", "deepseek"),
        ("<|channel|>final<|message|>", "harmony"),
        ('<|start_header_id|> [func_name1(params_name1=params_value1, ...)] "parameters"', "pythonic"),
        ("{{ messages }}", None),
        (None, None),
    ],
)
def test_the_chat_template_tells_the_format(template: str | None, name: str | None) -> None:
    found = format_of_template(template)
    assert (None if found is None else found.name) == name
