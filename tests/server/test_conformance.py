"""Suites that nobody here wrote: llm-comply against the vendors' schemas, schemathesis against our own description."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from llm_comply.tests import get_tests

from benchmarks.peers.environments import Environments, SetupFailed
from scripts import conformance
from tests.server.conftest import RunningServer

LLM_COMPLY = [sys.executable, "-c", "import sys; from llm_comply.cli import main; sys.exit(main())"]
SCHEMATHESIS = [sys.executable, "-c", "from schemathesis.cli import schemathesis; schemathesis()"]
COMPLY = {"openai-chat": "deepseek-r", "open-responses": "deepseek-r", "anthropic": "claude-sonnet-4"}
"""Formats, each with a name of a model whose tests of thoughts are not skipped."""
WAITING = {"chat-image-input", "image-input", "anth-image-input"}
"""Tests of images: tests/pending_cases.md."""


@pytest.mark.parametrize("interface", COMPLY)
def test_answers_are_what_the_vendors_schemas_say(tool_server: RunningServer, interface: str) -> None:
    tests = [test.id for test in get_tests(interface) if test.id not in WAITING]
    command = [
        *LLM_COMPLY, "--format", interface, "-u", f"{tool_server.url}/v1", "-k", "none", "-m", COMPLY[interface],
        "--json", "-f", ",".join(tests),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    report = json.loads(done.stdout)
    failed = [each for each in report["results"] if each["status"] != "passed"]
    assert not failed, json.dumps(failed, indent=1)
    assert len(report["results"]) == len(tests)


def test_the_description_holds_for_generated_requests(server: RunningServer, tmp_path: Path) -> None:
    command = [
        *SCHEMATHESIS, "run", f"{server.url}/openapi.json", "--no-color", "--seed", "1",
        "--phases", "fuzzing", "--max-examples", "6", "--generation-database", "none", "--request-timeout", "30",
        "--checks", "not_a_server_error,status_code_conformance,content_type_conformance",
        "--max-time", "20", "--no-shrink", "--warnings", "off",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert server.is_alive()


def test_the_description_is_whole(server: RunningServer) -> None:
    description: dict[str, Any] = server.client.get("/openapi.json").json()
    assert description["openapi"].startswith("3.1")
    schemas = description["components"]["schemas"]
    references = {each.split('"')[0] for each in json.dumps(description).split("#/components/schemas/")[1:]}
    assert references <= schemas.keys()
    body = {"prompt": "A", "max_tokens": 1, "logprobs": 1, "temperature": 0}
    completion = server.client.post("/v1/completions", json=body).json()
    jsonschema.validate(completion, {**schemas["Completion"], "components": description["components"]})


def setting(server: RunningServer, folder: Path) -> conformance.Setting:
    return conformance.Setting(server.url, "succ", folder / "model.gguf", Environments(folder), folder)


def test_a_program_that_cannot_be_had_is_skipped_and_one_that_finds_something_fails(
    server: RunningServer, tmp_path: Path
) -> None:
    def not_here(_: conformance.Setting) -> str:
        raise SetupFailed("no such package")

    def one_too_many(_: conformance.Setting) -> str:
        conformance.expect("failed", 1, 0)
        return "never"

    def broken(setting: conformance.Setting) -> str:
        return setting.run("false", ["false"])

    checks = (not_here, one_too_many, broken, lambda _: "20 requests")
    found = [conformance.outcome(check, setting(server, tmp_path)) for check in checks]
    assert found[:2] == [("skipped", "no such package"), ("failed", "failed is 1, not 0")]
    assert found[2][0] == "failed" and found[2][1].startswith("false ended with 1")
    assert found[3] == ("passed", "20 requests (0 s)")


def test_the_tasks_name_data_that_is_there(tmp_path: Path) -> None:
    texts = [path.read_text() for path in conformance.own_tasks(tmp_path).glob("*.yaml")]
    named = [Path(found) for text in texts for found in re.findall(r"test: (/.+\.jsonl)", text)]
    assert len(named) == len(texts) == 3
    for path in named:
        assert [json.loads(line) for line in path.read_text().splitlines()]
