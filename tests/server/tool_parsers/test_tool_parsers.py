"""Every format by the same behaviours, in one piece and in all ways to cut the text."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from octavo.server.output_events import Chain, OutputParser
from octavo.server.reasoning_parsers.think import parser_of_style
from octavo.server.tool_parsers.table import TOOL_FORMATS, format_of_template, tool_format
from octavo.tokenizer.reasoning_style import REASONING_STYLES, reasoning_style, style_of_template
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


def mistral_with_ids(calls: Sequence[Call]) -> str:
    return "".join(f"[TOOL_CALLS]{n}[CALL_ID]abcdefgh{i}[ARGS]{dumps(a)}" for i, (n, a) in enumerate(calls))


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
    "mistral with ids": Written(mistral_with_ids, lone="[TOOL_CALLS]na[CALL_ID]a"),
    "deepseek": Written(deepseek, lone="<｜tool▁call▁begin｜>fun"),
    "deepseek 3.1": Written(deepseek_31, lone="<｜tool▁call"),
    "harmony": Written(harmony, lone="<|chan"),
    "pythonic": Written(pythonic, around=False, lone="[f("),
}
formats = pytest.mark.parametrize("name", WRITTEN)


def read(name: str, text: str, cuts: Sequence[int] = (), *, forced: bool = False) -> ParsedOutput:
    """The text cut at some places, through a parser of its own."""
    return read_by(tool_format(_format_name(name)).parser(forced=forced), text, cuts)


def read_by(parser: OutputParser, text: str, cuts: Sequence[int] = ()) -> ParsedOutput:
    """The text cut at some places, through this parser."""
    output = ParsedOutput()
    for start, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
        output.add(parser.feed(text[start:end]))
    output.add(parser.end())
    return output


def _format_name(name: str) -> str:
    return name.split(" ")[0]


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
        """Of this process alone, the best of three."""
        found = []
        for _ in range(3):
            start = time.process_time()
            output = parse(tool_format(_format_name(name)).parser(), text)
            found.append(time.process_time() - start)
        if not output.calls:
            assert (output.content or "") == text
        return min(found)

    lone = WRITTEN[name].lone
    for unit in (lone, f"{lone} oops ", "<", "{", "[", " ", '{"name": "', "<tool_call>{", '{"id": 1, "id": 2, '):
        short, long = (unit * (size // len(unit)) for size in (50_000, 200_000))
        # Four times the text: a linear parser takes 4 times as long, a quadratic one 16 times.
        assert seconds(long) < 10 * seconds(short) + 0.05, unit


def test_what_opens_a_list_of_mistrals_and_is_no_call_is_content() -> None:
    for text in ("[TOOL_CALLS][oops", "[TOOL_CALLS] [ , oops", "a [TOOL_CALLS][[TOOL_CALLS][ x", "[TOOL_CALLS][1, 2]"):
        for cuts in ([], range(1, len(text))):
            output = read("mistral", text, cuts)
            assert (output.content, output.calls) == (text, [])
    assert read("mistral", "[TOOL_CALLS][]") == ParsedOutput()


RENDERED = json.loads((Path(__file__).parent / "rendered_calls.json").read_text())
"""Answers, and the turns that models' own chat templates write of them (``scripts/render_calls.py``)."""
TOLD_BY_A_FLAG = {"vLLM's Llama 4, JSON"}
"""Templates without a mark of their format."""
STYLES = {
    "Qwen/Qwen3-0.6B": "think",
    "Qwen/QwQ-32B": "think",
    "deepseek-ai/DeepSeek-V3.1": "think",
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B": "think",
    "mistralai/Ministral-3-14B-Reasoning-2512": "mistral",
}
models = pytest.mark.parametrize("model", RENDERED["rendered"])


def parser_of(model: str) -> OutputParser:
    """As a server with this model's template reads answers."""
    calls = tool_format(RENDERED["rendered"][model]["format"]).parser()
    return Chain(parser_of_style(reasoning_style(STYLES[model]), ""), calls) if model in STYLES else calls


def groupings(text: str, number: int = 100) -> Iterator[list[int]]:
    """Random places to cut a text at."""
    random_numbers = random.Random(text)
    for _ in range(number):
        yield sorted(random_numbers.sample(range(len(text)), random_numbers.randint(1, min(30, len(text)))))


@models
def test_what_a_models_own_template_writes_is_read_in_every_cut(model: str) -> None:
    rendered = RENDERED["rendered"][model]
    for name, turn in rendered["turns"].items():
        example = RENDERED["examples"][name]
        whole = read_by(parser_of(model), turn)
        if name == "text before" and not WRITTEN[rendered["format"]].around:
            assert (whole.content, whole.calls) == (turn, []), "an answer of this format is calls or content"
        else:
            said = ((whole.reasoning or "").strip(), (whole.content or "").strip(), calls_of(whole))
            calls = [tuple(call) for call in example.get("calls", ())]
            assert said == (example.get("reasoning", ""), example.get("content", ""), calls), name
        for cuts in (*([cut] for cut in range(len(turn) + 1)), range(1, len(turn)), *groupings(turn)):
            assert read_by(parser_of(model), turn, cuts) == whole, f"{name} cut at {cuts}"


def test_every_format_is_written_by_some_models_template_in_several_ways() -> None:
    """What a format's templates cannot say stands beside them with the reason."""
    said: dict[str, set[str]] = {name: set() for name in TOOL_FORMATS}
    for each in RENDERED["rendered"].values():
        assert each["turns"].keys() | each["cannot"].keys() == RENDERED["examples"].keys() and all(
            each["cannot"].values()
        )
        said[each["format"]] |= each["turns"].keys()
    assert {name for name, examples in said.items() if len(examples) < 10} == set(), "ten behaviours of each"


@models
def test_a_models_own_template_tells_its_format_and_its_style(model: str) -> None:
    """A fixture has those marks of all formats and styles that the template has."""
    rendered = RENDERED["rendered"][model]
    template = " ".join(rendered["marks"])
    told, style = format_of_template(template), style_of_template(template)
    assert (None if told is None else told.name) == (None if model in TOLD_BY_A_FLAG else rendered["format"])
    assert (None if style is None else style.name) == STYLES.get(model)


def test_fixtures_were_looked_through_for_all_marks() -> None:
    marks = {mark for name in TOOL_FORMATS for mark in tool_format(name).template_marks}
    tags = {tag for style in REASONING_STYLES.values() for tag in (style.begin, style.end)}
    assert set(RENDERED["marks"]) == marks | tags, "run scripts/render_calls.py again"


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


def test_harmony_text_that_begins_like_the_name_of_a_tool_is_content() -> None:
    for text in (
        " to",
        "to=functions.f",
        " to=functions.f is how",
        "to=func",
        "t" * 600,
        " " * 600,
        "to=functions." * 60,
    ):
        for cuts in ([], range(1, len(text))):
            output = read("harmony", text, cuts)
            assert (output.content, output.calls) == (text, [])


def test_pythonic_values_are_values_not_programs() -> None:
    for text in ("[f(x=__import__('os'))]", "[f(1)]", "[f(**{})]", "[1, 2]", "[f(x=1)] and more", "[" * 300):
        output = read("pythonic", text)
        assert (output.content, output.calls) == (text, [])


TOOLS = [
    {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    {"name": "now"},
]


EOS = "<eos>"
MARKUP = (
    "<|python_tag|>",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁sep｜>",
)
CHANNELS = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
SPECIAL = (EOS, *MARKUP, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", *CHANNELS)
IDS = {text: 256 + index for index, text in enumerate(SPECIAL)}


class Bytes:
    """A vocabulary of bytes, and special tokens."""

    num_text_tokens = 256 + len(SPECIAL)
    special_ids = frozenset(IDS.values())

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else SPECIAL[token_id - 256].encode()

    def encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())


def held_to(grammar: str, text: str, special: Mapping[str, int] = IDS) -> str:
    """As much of a text as the rules let a model with one token per byte write, and the end if it may follow."""
    from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend
    from octavo.words.structured_outputs import StructuredOutputParams

    vocabulary = Bytes()
    matcher = LLGuidanceBackend(vocabulary, [IDS[EOS]]).compile(StructuredOutputParams(grammar=grammar))
    pieces = re.split(f"({'|'.join(map(re.escape, special))})", text) if special else [text]
    wanted = [token for piece in pieces for token in ([special[piece]] if piece in special else piece.encode())]
    taken = list(itertools.takewhile(lambda token: matcher.accept([token]), wanted))
    may_end = taken == wanted and (matcher.is_complete or matcher.accept([IDS[EOS]]))
    return b"".join(map(vocabulary.token_bytes, taken)).decode(errors="replace") + (EOS if may_end else "")


vocabularies = pytest.mark.parametrize("special", [IDS, {}], ids=["special tokens", "markup is text"])


def objects(calls: Sequence[Call]) -> str:
    return "; ".join(dumps({"name": n, "arguments": a}) for n, a in calls)


FORCED = {**dict.fromkeys(TOOL_FORMATS, objects), "hermes": hermes, "llama3_json": llama}
"""How calls are written that must come: where the markup is special tokens, as objects alone."""
BRACES: Call = ("weather", {"city": 'R}]"; {\n</tool_call> 東京 🦙'})


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_call_that_must_come_holds_to_its_rules_and_is_read(name: str, several: bool) -> None:
    grammar, write = tool_format(name).grammar(TOOLS, several=several), FORCED[name]
    for calls in ([("now", {})], [BRACES], [("weather", {})], *([[BRACES, ("now", {}), BRACES]] if several else ())):
        text = write(calls)
        assert held_to(grammar, text) == text + EOS
        whole = read(name, text, forced=True)
        assert (calls_of(whole), whole.content, whole.reasoning) == (calls, None, None)
        for cut in range(len(text) + 1):
            assert read(name, text, [cut], forced=True) == whole, f"cut at {cut}"
        assert read(name, text, range(1, len(text)), forced=True) == whole


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("name", TOOL_FORMATS)
def test_a_call_that_must_come_cannot_be_anything_else(name: str, several: bool) -> None:
    grammar, write = tool_format(name).grammar(TOOLS, several=several), FORCED[name]
    right = write([("now", {})])
    for before, begun in (([], ""), ([("now", {})], right)) if several else (([], ""),):
        for wrong, at in ((("wind", {}), "ind"), (("weather", {"city": 7}), "7"), (("now", {"x": 1}), '"x')):
            spoilt = write([*before, wrong])
            assert held_to(grammar, spoilt) == spoilt[: spoilt.index(at, len(begun))]
    assert held_to(grammar, right[:-1]) == right[:-1], "a call has an end"
    assert held_to(grammar, "") == "" and held_to(grammar, "hi " + right) == "", "nothing else goes before it"
    assert held_to(grammar, right + " hi").rstrip() in (right, right + ";"), "nor behind it"
    if not several:
        two = write([("now", {}), ("now", {})])
        assert held_to(grammar, two) == right, "and it is one"


def open_grammar(name: str, special: Mapping[str, int]) -> str:
    grammar = tool_format(_format_name(name)).open_grammar(TOOLS, special)
    if grammar is None or (name.startswith("mistral ") and not special):
        pytest.skip("this markup is always special tokens")
    return grammar


@vocabularies
@formats
def test_a_call_holds_to_its_schema_once_it_begins_in_any_text(name: str, special: Mapping[str, int]) -> None:
    grammar, written = open_grammar(name, special), WRITTEN[name]
    text = ("a <b> [1] {x} " if written.around and name != "harmony" else "") + written.write(EXAMPLES["two"])
    ending = "<|call|>" if name == "harmony" else ""  # which is one of the model's ends
    assert held_to(grammar, text.removesuffix(ending), special) == text.removesuffix(ending) + EOS
    assert calls_of(read(name, text)) == EXAMPLES["two"]
    for wrong, at in (
        ([("wind", {})], "(" if name == "pythonic" else "ind"),
        ([("weather", {"city": 7})], "7"),
        ([("now", {"x": 1})], "x"),
    ):
        spoilt = written.write(wrong)
        assert held_to(grammar, spoilt, special) == spoilt[: spoilt.index(at)].rstrip('"'), "as far as it is a call"


@vocabularies
@formats
def test_text_without_a_call_is_free(name: str, special: Mapping[str, int]) -> None:
    grammar = open_grammar(name, special)
    for text in ("", "a < b, [1] and {not} a call\n", '{"city": "Rome"}', '{"type": 3, "id": "x"} then', "[TOOL"):
        assert held_to(grammar, text, special) == text + EOS


@pytest.mark.parametrize(
    ("name", "markup"),
    [
        ("llama3_json", "<|python_tag|>"),
        ("mistral", "[TOOL_CALLS]"),
        ("deepseek", "<｜tool▁calls▁begin｜>"),
        ("deepseek", "<｜tool▁call▁begin｜>"),
        ("harmony", "<|channel|>"),
    ],
)
def test_markup_that_is_special_tokens_is_not_spelt_by_others(name: str, markup: str) -> None:
    assert held_to(open_grammar(name, IDS), markup, {}).rstrip("\ufffd") == markup[:-1]


def test_llama_may_begin_a_call_with_its_type_or_a_tag() -> None:
    for text in (
        '<|python_tag|>{"name": "now", "parameters": {}}',
        ' {"type": "function", "name":"now" , "parameters":{ } }',
    ):
        assert held_to(open_grammar("llama3_json", IDS), text) == text + EOS
        assert [call.name for call in read("llama3_json", text).calls] == ["now"]


def test_harmony_may_think_and_comment_before_a_call_and_name_its_tool_first() -> None:
    grammar = open_grammar("harmony", IDS)
    thoughts = "<|channel|>analysis<|message|>hm <b><|end|><|start|>assistant"
    for text in (
        f"{thoughts}<|channel|>commentary to=functions.now <|constrain|>json<|message|>{{}}",
        f"{thoughts} to=functions.now<|channel|>commentary json<|message|>{{}}",
        " to=functions.now<|channel|>commentary json<|message|>{}",
        f"{thoughts}<|channel|>final<|message|>It is [1].",
        "<|message|>",
    ):
        assert held_to(grammar, text) == (text + EOS if text != "<|message|>" else "")


def test_pythonic_arguments_are_pythons_literals() -> None:
    kinds = {"type": "object", "properties": {"a": {"enum": ["x", 1, None]}, "b": {"type": ["boolean", "null"]}}}
    properties = {
        "first": {"type": "string"},
        "count": {"type": "integer", "minimum": 1},
        "kinds": {**kinds, "required": ["b"]},
        "many": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"const": True}]}},
        "other": {"description": "anything"},
    }
    tool = {"name": "f.g", "parameters": {"type": "object", "properties": properties, "required": ["count"]}}
    grammar = tool_format("pythonic").open_grammar([tool, {"name": "h", "parameters": {"type": "object"}}], {})
    assert grammar is not None
    given: dict[str, list[Call]] = {
        "[f.g(count=3)]": [("f.g", {"count": 3})],
        r"""[f.g(first='a"\\\n', count=3, many=[1.5, True], other={"x": [None]})]""": [
            ("f.g", {"first": 'a"\\\n', "count": 3, "many": [1.5, True], "other": {"x": [None]}})
        ],
        """[f.g(count=3, kinds={"a": None, "b": False}), h(any='x', more=[1]), h()]""": [
            ("f.g", {"count": 3, "kinds": {"a": None, "b": False}}),
            ("h", {"any": "x", "more": [1]}),
            ("h", {}),
        ],
    }
    for text, calls in given.items():
        assert held_to(grammar, text, {}) == text + EOS
        assert calls_of(read("pythonic", text)) == calls
    wrong = ["[f.g(|)", "[f.g(first='x'|)", "[f.g(count=|0", "[f.g(count=1, |first", "[f.g(count=1, many=[|False"]
    for right, rest in (text.split("|") for text in wrong):
        assert held_to(grammar, right + rest, {}) == right


@pytest.mark.parametrize(
    "schema", [{"type": "string", "maxLength": 3}, {"$ref": "#"}, {"type": "array", "minItems": 1}, False]
)
def test_pythonic_has_no_rules_for_what_pythons_words_do_not_say(schema: Any) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    assert tool_format("pythonic").open_grammar([tool], {}) is None
    assert tool_format("pythonic").open_grammar([{"name": "not-a-name"}], {}) is None


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
