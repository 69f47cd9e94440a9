"""Every example runs as it is."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SAID = {
    "beam_search.py": "The capital of France is Paris",
    "offline_batch.py": "The capital of France is' -> ' Paris",
    "chat.py": "assistant: ",
    "prompt_embeds.py": "after 5 rows: ",
    "prefix_caching.py": "from the cache",
    "lora.py": "made-up: ",
    "embeddings.py": "Cats sleep most of the day.",
    "structured_output.py": "France {'city': 'Paris', 'continent': 'Europe'}",
}
COMPARED = {"own_logits_processor.py", "repetition_detection.py", "speculative_decoding.py", "thinking_budget.py"}
"""What these say is looked at in tests of their own."""
IN_SERVER_TESTS = {"openai_client.py", "tool_calls.py"}


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines_like(pattern: str, said: str) -> list[tuple[str, ...]]:
    """The groups of each line that is wholly like ``pattern``."""
    return [found.groups() for line in said.splitlines() if (found := re.fullmatch(pattern, line))]


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID) | COMPARED | IN_SERVER_TESTS


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs_and_says_what_it_should(smollm2: str, name: str) -> None:
    assert SAID[name] in run(name)


def test_the_letter_that_a_request_does_not_like_is_not_in_its_answer(smollm2: str) -> None:
    said = run("own_logits_processor.py")
    assert "Paris" in said
    assert "e" not in said


def test_drafts_are_right_and_change_no_answer(smollm2: str) -> None:
    plain, drafted = lines_like(r"(\w+): (.+), (\d+) of (\d+) drafts were right", run("speculative_decoding.py"))
    assert (plain[0], drafted[0]) == ("none", "ngram")
    assert drafted[1] == plain[1]
    assert plain[2:] == ("0", "0")
    assert 0 < int(drafted[2]) <= int(drafted[3])


def test_thoughts_are_cut_off_where_their_budget_ends(smollm2: str) -> None:
    found = lines_like(r"(\d+) tokens of thought: (.+), then the answer: (.+)", run("thinking_budget.py"))
    assert [budget for budget, *_ in found] == ["4", "16"]
    (short, first), (long, second) = [
        (ast.literal_eval(thoughts), ast.literal_eval(answer)) for _, thoughts, answer in found
    ]
    assert long.startswith(short) and 0 < len(short) < len(long)
    assert first and second


def test_a_loop_ends_early_and_is_the_beginning_of_what_would_have_come(smollm2: str) -> None:
    free, ended = lines_like(r"(\w+) after (\d+) tokens: (.+)", run("repetition_detection.py"))
    assert free[:2] == ("length", "64")
    assert ended[0] == "repetition" and int(ended[1]) < 64
    assert ast.literal_eval(free[2]).startswith(ast.literal_eval(ended[2]))
