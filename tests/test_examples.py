"""Every example runs as it is."""

from __future__ import annotations

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
    "own_logits_processor.py": "",
    "speculative_decoding.py": " five six seven eight nine",
    "structured_output.py": "France {'city': 'Paris', 'continent': 'Europe'}",
}


IN_SERVER_TESTS = {"openai_client.py", "tool_calls.py"}


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(SAID) | IN_SERVER_TESTS


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs_and_says_what_it_should(smollm2: str, name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    assert SAID[name] in done.stdout
