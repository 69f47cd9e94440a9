"""Turns that models' own chat templates write of some answers: the fixtures of the tests of tool formats.

    python -m pip download --no-deps --no-binary :all: llama-cpp-python==0.3.36 vllm==0.33.0 -d PACKAGES
    python -m scripts.render_calls PACKAGES

The templates lie in source packages of other projects (and in the GGUF file of a model in the cache): they are read
there, rendered by Transformers, and left there. What is written to tests/server/tool_parsers/rendered_calls.json is
each turn without the token that ends it, the SHA-256 of its template, which marks of formats and styles the template
has, and what it cannot say. No model's own template writes Python's lists of calls: those are of vLLM's.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from octavo.checkpoint.catalogue import models_dir
from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.load_tokenizer import load_tokenizer
from octavo.server.tool_parsers.table import TOOL_FORMATS, tool_format
from octavo.tokenizer.reasoning_style import REASONING_STYLES

TARGET = Path(__file__).resolve().parent.parent / "tests" / "server" / "tool_parsers" / "rendered_calls.json"
LLAMA_CPP = "llama_cpp_python-0.3.36/vendor/llama.cpp/models/templates/"
VLLM = "vllm-0.33.0/examples/tool_chat_template_"
QUESTION = "What is it?"
JSON_WORDS: Mapping[str, Any] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True)
class Source:
    """Whose template, the format of its calls, and where it lies. ``blocks``: thoughts are parts of the content."""

    model: str
    format: str
    file: str
    blocks: bool = False


SOURCES = (
    Source("Qwen/Qwen2.5-7B-Instruct", "hermes", LLAMA_CPP + "Qwen-Qwen2.5-7B-Instruct.jinja"),
    Source("Qwen/Qwen3-0.6B", "hermes", LLAMA_CPP + "Qwen-Qwen3-0.6B.jinja"),
    Source("Qwen/QwQ-32B", "hermes", LLAMA_CPP + "Qwen-QwQ-32B.jinja"),
    Source("Qwen/Qwen2.5-Coder-0.5B-Instruct", "hermes", "qwen2.5-coder-0.5b"),
    Source(
        "NousResearch/Hermes-3-Llama-3.1-8B",
        "hermes",
        LLAMA_CPP + "NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja",
    ),
    Source("meta-llama/Llama-3.1-8B-Instruct", "llama3_json", LLAMA_CPP + "meta-llama-Llama-3.1-8B-Instruct.jinja"),
    Source("meta-llama/Llama-3.2-3B-Instruct", "llama3_json", LLAMA_CPP + "meta-llama-Llama-3.2-3B-Instruct.jinja"),
    Source("vLLM's Llama 3.1", "llama3_json", VLLM + "llama3.1_json.jinja"),
    Source("vLLM's Llama 4, JSON", "llama3_json", VLLM + "llama4_json.jinja"),
    Source("vLLM's Llama 3.2, pythonic", "pythonic", VLLM + "llama3.2_pythonic.jinja"),
    Source("vLLM's Llama 4, pythonic", "pythonic", VLLM + "llama4_pythonic.jinja"),
    Source("vLLM's Gemma 3, pythonic", "pythonic", VLLM + "gemma3_pythonic.jinja"),
    Source("mistralai/Mistral-Nemo-Instruct-2407", "mistral", LLAMA_CPP + "mistralai-Mistral-Nemo-Instruct-2407.jinja"),
    Source("vLLM's Mistral Small 3.1", "mistral", VLLM + "mistral3.jinja"),
    Source(
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        "mistral",
        LLAMA_CPP + "Mistral-Small-3.2-24B-Instruct-2506.jinja",
    ),
    Source(
        "mistralai/Ministral-3-14B-Reasoning-2512",
        "mistral",
        LLAMA_CPP + "mistralai-Ministral-3-14B-Reasoning-2512.jinja",
        blocks=True,
    ),
    Source("deepseek-ai/DeepSeek-V3.1", "deepseek", LLAMA_CPP + "deepseek-ai-DeepSeek-V3.1.jinja"),
    Source(
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        "deepseek",
        LLAMA_CPP + "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja",
    ),
    Source("openai/gpt-oss-120b", "harmony", LLAMA_CPP + "openai-gpt-oss-120b.jinja"),
)

ROME = ["weather", {"city": "Rome"}]
EXAMPLES: dict[str, dict[str, Any]] = {
    "one": {"calls": [ROME]},
    "two": {"calls": [["weather", {"city": "Rome", "days": 3}], ["now", {}]]},
    "three, one name twice": {"calls": [ROME, ["now", {}], ["weather", {"city": "Oslo"}]]},
    "no arguments": {"calls": [["now", {}]]},
    "foreign": {"calls": [["find", {"q": "Zürich 東京 🦙"}]]},
    "awkward": {"calls": [["say", {"text": 'a{b}"c"\n</x> [1] \\ } ]'}]]},
    "markup": {"calls": [["say", {"text": '</tool_call>; {"name": "now"} [TOOL_CALLS] ```\n'}]]},
    "nested": {"calls": [["f", {"a": {"b": [1, -2.5, None, "}]"], "c": {}}}]]},
    "numbers": {"calls": [["f", {"x": 1, "y": -2.5}], ["g", {"z": 7}]]},
    "no": {"calls": [["set", {"on": False}]]},
    "words": {"calls": [["weather", {"city": "Rome", "unit": "°C"}], ["weather", {"city": "東京"}]]},
    "text before": {"content": "Let me look.", "calls": [ROME]},
    "thoughts before": {"reasoning": "It is {hot} <there>", "calls": [ROME]},
    "thoughts and text": {"reasoning": "It is {hot}", "content": "It is 30 °C."},
    "text alone": {"content": "It is 30 °C: [a] {b} <c>"},
}
TURN_BEGINS = (
    "<|im_start|>assistant\n",
    "[/INST]",
    "<｜Assistant｜>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|header_start|>assistant<|header_end|>\n\n",
    "<start_of_turn>model\n",
    "<|start|>assistant",
)
TURN_ENDS = (
    "<eos>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|eot|>",
    "<｜end▁of▁sentence｜>",
    "<end_of_turn>",
    "<|end_of_text|>",
)


def main() -> int:
    packages = parse().packages
    rendered = {source.model: rendering(source, template_of(source, packages)) for source in SOURCES}
    found = {"marks": marks(), "examples": EXAMPLES, "rendered": rendered}
    TARGET.write_text(json.dumps(found, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    for model, each in rendered.items():
        print(f"{model:<50} {each['format']:<12} {len(each['turns']):>2} of {len(EXAMPLES)}")
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", type=Path, help="folder with the source packages, as pip downloads them")
    return parser.parse_args()


def template_of(source: Source, packages: Path) -> str:
    """The text of a template: from a member of a source package, or from a model in the cache."""
    if "/" not in source.file:
        return load_tokenizer(resolve_model(str(models_dir() / source.file))).chat_template or ""
    with tarfile.open(packages / f"{source.file.partition('/')[0]}.tar.gz") as package:
        member = package.extractfile(source.file)
        assert member is not None, source.file
        return member.read().decode()


def marks() -> list[str]:
    """All texts that tell formats and styles from one another."""
    of_formats = {mark for name in TOOL_FORMATS for mark in tool_format(name).template_marks}
    return sorted(of_formats | {tag for style in REASONING_STYLES.values() for tag in (style.begin, style.end)})


def rendering(source: Source, template: str) -> dict[str, Any]:
    turns, cannot = {}, {}
    for name, example in EXAMPLES.items():
        try:
            turns[name] = turn(source, template, example)
        except (ValueError, TemplateError) as error:
            cannot[name] = str(error)
    return {
        "format": source.format,
        "template": source.file,
        "sha256": hashlib.sha256(template.encode()).hexdigest(),
        "marks": [mark for mark in marks() if mark in template],
        "turns": turns,
        "cannot": cannot,
    }


def turn(source: Source, template: str, example: Mapping[str, Any]) -> str:
    """What the model would have to write for its template to write this. Raises ValueError where that is not all."""
    asked = [{"role": "user", "content": QUESTION}]
    prompt = rendered(template, asked, example, add_generation_prompt=True)
    whole = rendered(template, [*asked, message(source, example)], example, add_generation_prompt=False)
    written = whole[len(prompt) :] if whole.startswith(prompt) else behind_header(whole.partition(QUESTION)[2])
    written = re.split(rf"\s*(?:{'|'.join(map(re.escape, TURN_ENDS))})", written)[0]
    check(source, example, written)
    return written


def rendered(
    template: str, messages: Sequence[Mapping[str, Any]], example: Mapping[str, Any], *, add_generation_prompt: bool
) -> str:
    names = dict.fromkeys([name for name, _ in example.get("calls", ())] or ["weather"])
    schema = {"type": "object", "properties": {}}
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "description": "It.", "parameters": schema}} for name in names
    ]
    found: Any = render_jinja_template(
        conversations=[[dict(message) for message in messages]],
        tools=tools,
        chat_template=template,
        add_generation_prompt=add_generation_prompt,
        bos_token="<bos>",
        eos_token="<eos>",
    )
    return str(found[0][0])


def message(source: Source, example: Mapping[str, Any]) -> dict[str, Any]:
    """The example as a message, with thoughts under every name that templates look for."""
    said: dict[str, Any] = {"role": "assistant", "content": example.get("content", "")}
    if thoughts := example.get("reasoning"):
        said |= {"reasoning_content": thoughts, "thinking": thoughts}
        blocks = [{"type": "thinking", "thinking": thoughts}, {"type": "text", "text": said["content"]}]
        said["content"] = blocks if source.blocks else said["content"]
    if calls := example.get("calls"):
        said["tool_calls"] = [
            {"id": f"abcdefgh{index}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for index, (name, arguments) in enumerate(calls)
        ]
    return said


def behind_header(text: str) -> str:
    """What stands behind the header of the answer's turn."""
    found = [(text.index(begin), begin) for begin in TURN_BEGINS if begin in text]
    if not found:
        raise ValueError("no turn of an assistant")
    at, begin = min(found)
    return text[at + len(begin) :]


def check(source: Source, example: Mapping[str, Any], written: str) -> None:
    """Raise ValueError where the turn lacks a part of the example."""
    for part in ("content", "reasoning"):
        if example.get(part, "") not in written:
            raise ValueError(f"leaves out the {part}")
    if source.format == "harmony" and "content" in example and "calls" in example:
        raise ValueError("writes text before a call as thoughts")
    calls = [(name, arguments) for name, arguments in example.get("calls", ())]
    found = list(pythonic_calls(written)) if source.format == "pythonic" and calls else calls
    if found != calls:
        raise ValueError("writes other values")
    if source.format != "pythonic":
        for name, arguments in calls:
            if json.dumps(arguments, ensure_ascii=False) not in written or name not in written:
                raise ValueError("leaves out a call or changes its arguments")


def pythonic_calls(text: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The calls of a Python list, whose words may be JSON's. Raises ValueError where a value is no literal."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise ValueError("writes no Python") from None
    for call in tree.elts if isinstance(tree, ast.List) else ():
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
            yield call.func.id, {str(each.arg): value_of(each.value) for each in call.keywords}


def value_of(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id not in JSON_WORDS:
        raise ValueError("writes texts without quotes")
    return JSON_WORDS[node.id] if isinstance(node, ast.Name) else ast.literal_eval(node)


if __name__ == "__main__":
    sys.exit(main())
