"""Batch files: every line has its answer once, whatever was in it and wherever an earlier run was cut off."""

from __future__ import annotations

import asyncio
import json
import resource
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from octavo.cli.main import main
from octavo.server.batch import Tally, answered_ids, parse_line, run_batch
from octavo.words.errors import ConfigError


class EchoApp:
    """Answers with the path and the body it got; a body may ask for a status. Counts how many it has at once."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.most_open = 0
        self._open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = json.loads((await receive())["body"])
        self.asked.append(body)
        self._open += 1
        self.most_open = max(self.most_open, self._open)
        await asyncio.sleep(0.001)
        self._open -= 1
        headers = [(b"x-request-id", b"id-1")]
        await send({"type": "http.response.start", "status": body.get("status", 200), "headers": headers})
        data = json.dumps({"path": scope["path"], **body}).encode()
        await send({"type": "http.response.body", "body": data[:5], "more_body": True})
        await send({"type": "http.response.body", "body": data[5:]})


def line(custom_id: str, **body: Any) -> str:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body})


def run(app: EchoApp, tmp_path: Path, *lines: str, max_concurrency: int = 8) -> tuple[Tally, list[dict[str, Any]]]:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(lines) + "\n")
    tally = asyncio.run(run_batch(app, source, target, max_concurrency=max_concurrency))
    return tally, [json.loads(answer) for answer in target.read_text().splitlines()]


def test_every_line_is_answered_in_openai_s_format(tmp_path: Path) -> None:
    app = EchoApp()
    tally, answers = run(app, tmp_path, line("a", x=1), "", line("b", x=2, status=400))
    assert (tally.answered, tally.failed, tally.skipped) == (1, 1, 0)
    by_id = {answer["custom_id"]: answer for answer in answers}
    assert by_id["a"]["response"] == {
        "status_code": 200,
        "request_id": "id-1",
        "body": {"path": "/v1/completions", "x": 1},
    }
    assert by_id["a"]["error"] is None
    assert by_id["b"]["response"]["status_code"] == 400
    assert len({answer["id"] for answer in answers}) == 2


def test_a_second_run_asks_only_what_has_no_answer(tmp_path: Path) -> None:
    run(EchoApp(), tmp_path, line("a"), line("b", status=503), line("c", status=404))
    app = EchoApp()
    tally, answers = run(app, tmp_path, line("a"), line("b", retried=True), line("c"), line("d"))
    assert app.asked == [{"retried": True}, {}]
    assert (tally.answered, tally.skipped) == (2, 2)
    assert sorted(answer["custom_id"] for answer in answers) == ["a", "b", "c", "d"]


def test_half_an_answer_of_a_run_that_was_killed_is_made_whole(tmp_path: Path) -> None:
    run(EchoApp(), tmp_path, line("a"), line("b"))
    target = tmp_path / "out.jsonl"
    target.write_bytes(target.read_bytes()[:-10])
    assert len(answered_ids(target)) == 1
    _, answers = run(EchoApp(), tmp_path, line("a"), line("b"))
    assert sorted(answer["custom_id"] for answer in answers) == ["a", "b"]


def test_a_disk_that_fills_up_in_the_middle_of_a_line_is_told(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (700, hard))
    try:
        with pytest.raises(ConfigError, match="out.jsonl"):
            run(EchoApp(), tmp_path, line("a"), line("b", text="long" * 100))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    tally, answers = run(EchoApp(), tmp_path, line("a"), line("b", text="long" * 100))
    assert (tally.skipped, tally.answered, len(answers)) == (1, 1, 2)


def test_an_id_that_comes_twice_is_answered_once(tmp_path: Path) -> None:
    tally, answers = run(EchoApp(), tmp_path, line("a"), line("a"))
    assert (tally.answered, tally.skipped, len(answers)) == (1, 1, 1)


def test_what_is_no_request_is_told_with_its_line_and_harms_no_other(tmp_path: Path) -> None:
    tally, answers = run(EchoApp(), tmp_path, "{nonsense", '{"custom_id": "x"}', line("a"))
    assert (tally.answered, tally.failed) == (1, 2)
    errors = [answer["error"]["message"] for answer in answers if answer["error"]]
    assert errors[0].startswith("line 1:") and errors[1].startswith("line 2:")
    again, answers = run(EchoApp(), tmp_path, "{nonsense", line("a"))
    assert (again.failed, again.skipped, len(answers)) == (1, 1, 2)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"custom_id": "a", "method": "GET", "url": "/v1/models", "body": {}}', "GET /v1/models cannot be in a batch"),
        ('{"custom_id": "a", "url": "/health", "body": {}}', "POST /health cannot be"),
        ('{"custom_id": "a", "url": "/v1/completions", "body": {"stream": true}}', "leave stream out"),
        ('{"custom_id": 7, "url": "/v1/completions", "body": {}}', "custom_id"),
    ],
)
def test_lines_that_cannot_be_in_a_batch(text: str, said: str) -> None:
    found = parse_line(text.encode(), 3)
    assert isinstance(found, str)
    assert found.startswith("line 3:") and said in found


def test_no_more_than_asked_run_at_once(tmp_path: Path) -> None:
    app = EchoApp()
    run(app, tmp_path, *(line(str(number)) for number in range(20)), max_concurrency=3)
    assert app.most_open == 3
    assert len(app.asked) == 20


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="input file"):
        asyncio.run(run_batch(EchoApp(), tmp_path / "none", tmp_path / "out", max_concurrency=1))
    (tmp_path / "in").write_text(line("a"))
    with pytest.raises(ConfigError, match="output file"):
        asyncio.run(run_batch(EchoApp(), tmp_path / "in", tmp_path / "no" / "out", max_concurrency=1))


def test_the_command_answers_as_the_server_would(succ: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [
        line("counts", model="m", prompt="A", max_tokens=4, temperature=0),
        line("other model", model="x", prompt="A"),
        line("wrong", model="m", prompt="A", max_tokens=-1),
    ]
    source.write_text("\n".join(lines))
    flags = ["--served-model-name", "m", "--max-model-len", "256", "--num-threads", "1", "--disable-log-stats"]
    assert main(["run-batch", "-i", str(source), "-o", str(target), "--model", str(succ), *flags]) == 1
    answers = {answer["custom_id"]: answer["response"] for answer in map(json.loads, target.read_text().splitlines())}
    assert answers["counts"]["body"]["choices"][0]["text"] == "BCDE"
    assert [answers[name]["status_code"] for name in ("counts", "other model", "wrong")] == [200, 404, 400]
    assert answers["counts"]["request_id"]


def test_wrong_usage_of_the_command_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "in").write_text("")
    usual = ["-i", str(tmp_path / "in"), "-o", str(tmp_path / "out")]
    assert main(["run-batch", *usual, "--max-concurrency", "0"]) == 2
    assert main(["run-batch", "-i", str(tmp_path / "none"), "-o", str(tmp_path / "out")]) == 2
    assert main(["run-batch", "-i", str(tmp_path / "in"), "-o", "/no/such/folder/out"]) == 2
    assert "no such file" in capsys.readouterr().err
