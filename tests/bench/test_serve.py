"""The load generator against a server that counts: nothing is lost, and times are told as they were."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.serve import add_arguments
from octavo.bench.serving.datasets import DatasetOptions, load_prompts
from octavo.bench.serving.figures import details, figures, max_concurrent, max_tokens_in_a_second, table
from octavo.bench.serving.load import Answer, Rates
from octavo.cli.main import main
from tests.bench.fake_openai_server import FakeOpenAIServer

SHAPE = ["--num-prompts", "6", "--random-input-len", "5", "--random-output-len", "4"]


def serve_bench(url: str, *flags: str) -> int:
    return main(["bench", "serve", "--base-url", url, "--ready-check-timeout-sec", "5", *flags])


def saved(url: str, tmp_path: Path, *flags: str) -> dict[str, Any]:
    name = ["--result-dir", str(tmp_path), "--result-filename", "result.json", "--save-result", "--save-detailed"]
    assert serve_bench(url, *name, *flags) == 0
    result: dict[str, Any] = json.loads((tmp_path / "result.json").read_text())
    return result


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
@pytest.mark.parametrize("piece_bytes", [3, 1 << 16])
def test_every_token_of_every_request_is_counted(succ: Path, tmp_path: Path, backend: str, piece_bytes: int) -> None:
    server = FakeOpenAIServer(str(succ), piece_bytes=piece_bytes)
    with server.running() as url:
        result = saved(url, tmp_path, "--backend", backend, "--max-concurrency", "2", *SHAPE)
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 24)
    assert result["output_lens"] == [4] * 6
    assert [len(itls) for itls in result["itls"]] == [3] * 6
    assert result["generated_texts"] == [" 0 1 2 3"] * 6
    assert result["total_input_tokens"] == sum(result["input_lens"])
    assert result["output_throughput"] == pytest.approx(24 / result["duration"])
    assert server.max_open <= 2 and result["max_concurrent_requests"] <= 2
    assert server.num_connections <= 1 + 2  # one asks which models there are, the others are used again


def test_what_is_asked_for_reaches_the_server(succ: Path) -> None:
    server = FakeOpenAIServer(str(succ))
    flags = [
        "--ignore-eos",
        "--temperature",
        "0.5",
        "--extra-body",
        '{"top_k": 7}',
        "--top-k",
        "5",
        "--top-p",
        "0.9",
        "--min-p",
        "0.1",
        "--logprobs",
        "2",
        "--api-key",
        "k",
        "--header",
        "X-A=b",
    ]
    with server.running() as url:
        assert serve_bench(url, "--served-model-name", "other", *flags, *SHAPE) == 0
    body = server.bodies[-1]
    assert (body["model"], body["temperature"], body["top_k"], body["max_tokens"]) == ("other", 0.5, 7, 4)
    assert body["ignore_eos"] is True and body["stream"] is True
    assert (body["top_p"], body["min_p"], body["logprobs"]) == (0.9, 0.1, 2) and "presence_penalty" not in body
    assert "Authorization: Bearer k" in server.headers[-1] and "X-A: b" in server.headers[-1]


def test_a_connection_that_was_closed_while_idle_is_opened_again(succ: Path, tmp_path: Path) -> None:
    server = FakeOpenAIServer(str(succ), close_after=2)
    with server.running() as url:
        result = saved(url, tmp_path, "--max-concurrency", "1", *SHAPE)
    assert result["completed"] == 6


def test_failures_are_counted_and_told(succ: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [{"prompt": "a b", "output_tokens": 2}, {"prompt": "fail"}]
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    with FakeOpenAIServer(str(succ)).running() as url:
        flags = ["--dataset-name", "custom", "--dataset-path", str(path), "--num-prompts", "4"]
        result = saved(url, tmp_path, *flags)
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (2, 2, 4)
    assert "as you wish" in result["errors"][1]
    assert "as you wish" in capsys.readouterr().out


def test_conversations_out_of_bounds_are_left_out(succ: Path, tmp_path: Path) -> None:
    def conversation(*texts: str) -> dict[str, Any]:
        return {"conversations": [{"value": text} for text in texts]}

    good = conversation("one two three four five", "six seven eight nine ten")
    path = tmp_path / "sharegpt.json"
    path.write_text(
        json.dumps([good, conversation("alone"), conversation("a", "b"), conversation("a " * 3000, "b" * 9)])
    )
    server = FakeOpenAIServer(str(succ))
    with server.running() as url:
        saved(url, tmp_path, "--dataset-name", "sharegpt", "--dataset-path", str(path), "--num-prompts", "2")
    assert {body["prompt"] for body in server.bodies} == {"one two three four five"}


def test_a_server_that_fails_the_first_request_is_told_at_once(
    succ: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "fail"}')
    with FakeOpenAIServer(str(succ)).running() as url:
        assert serve_bench(url, "--dataset-name", "custom", "--dataset-path", str(path)) == 1
    assert "the first request failed" in capsys.readouterr().err


def test_a_picture_is_drawn(succ: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "run.png"
    with FakeOpenAIServer(str(succ)).running() as url:
        assert serve_bench(url, "--plot", str(picture), *SHAPE) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--num-prompts", "0"], "--num-prompts must be at least 1"),
        (["--request-rate", "0"], "must be above 0"),
        (["--ramp-up-strategy", "linear"], "needs --ramp-up-start-rps"),
        (["--goodput", "speed:1"], "no metric 'speed'"),
        (["--goodput", "ttft"], "give NAME:VALUE"),
        (["--percentile-metrics", "ttft,x"], "no metric 'x'"),
        (["--metric-percentiles", "most"], "'most' is no number"),
        (["--base-url", "ftp://x"], "is no address"),
        (["--plot", "/no/such/folder/x.png"], "does not exist"),
        (["--ready-check-timeout-sec", "0", "--port", "1"], "no server that lists models"),
    ],
)
def test_wrong_usage_is_one_clear_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    assert main(["bench", "serve", *flags]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def answer(start: float, ttft: float, *itls: float) -> Answer:
    return Answer(
        prompt_len=3,
        start=start,
        success=True,
        output_len=1 + len(itls),
        ttft=ttft,
        latency=ttft + sum(itls),
        itls=[*itls],
    )


def test_figures_are_worked_out_from_the_answers_that_succeeded() -> None:
    answers = [answer(10.0, 0.1, 0.02, 0.04), answer(10.5, 0.3, 0.06, 0.06), Answer(prompt_len=9, error="no")]
    found = figures(
        answers, 2.0, percentiles=[50, 99], metrics=["ttft", "tpot", "itl", "e2el"], goodput={"ttft": 200.0}
    )
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (6, 6)
    assert found["request_throughput"] == 1.0
    assert found["request_goodput"] == 0.5
    assert found["mean_ttft_ms"] == pytest.approx(200.0)
    assert found["mean_tpot_ms"] == pytest.approx((30 + 60) / 2)
    assert found["mean_itl_ms"] == pytest.approx((20 + 40 + 60 + 60) / 4)
    assert found["p50_e2el_ms"] == pytest.approx((160 + 420) / 2)
    assert found["p99_ttft_ms"] == pytest.approx(100 + 0.99 * 200)
    text = table(found | {"request_rate": 3.0}, metrics=["ttft"], percentiles=[99])
    assert "Successful requests:                     2" in text
    assert "Mean TTFT (ms):                          200.00" in text


def test_peaks_are_of_what_was_open_and_what_came_at_once() -> None:
    overlapping = [answer(10.0, 0.5, 0.7), answer(10.4, 0.1), answer(12.0, 0.1)]
    assert max_concurrent(overlapping) == 2
    assert max_tokens_in_a_second(overlapping) == 2


def test_details_count_time_from_the_beginning() -> None:
    assert details([answer(12.5, 0.1)], began=12.0)["start_times"] == [0.5]


def test_gaps_meet_the_rate_and_are_the_same_for_the_same_seed() -> None:
    times = Rates(request_rate=4.0, burstiness=0.5).times(101, seed=3)
    assert times == Rates(request_rate=4.0, burstiness=0.5).times(101, seed=3)
    assert times != Rates(request_rate=4.0, burstiness=0.5).times(101, seed=4)
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0.0, pytest.approx(25.0))


def test_without_a_rate_all_go_at_once() -> None:
    assert Rates().times(4, seed=0) == [0.0] * 4
    assert Rates(request_rate=2.0).times(1, seed=0) == [0.0]


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 5.5), ("exponential", 10**0.5)])
def test_a_ramp_goes_from_one_rate_to_the_other(strategy: str, middle: float) -> None:
    rates = Rates(ramp_up_strategy=strategy, ramp_up_start_rps=1.0, ramp_up_end_rps=10.0)
    assert [rates.at(progress) for progress in (0.0, 0.5, 1.0)] == pytest.approx([1.0, middle, 10.0])
    times = rates.times(401, seed=1)
    assert times[100] > times[400] - times[300]


class WordCoder:
    """One token per word, but ids below 200 are halves that melt together when they are read again."""

    num_text_tokens = 1000
    special_ids = frozenset({0})

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [int.from_bytes(word.encode(), "big") for word in text.split()]

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(f" {_letters(id)}" if id >= 200 else "-" for id in ids)


def _letters(number: int) -> str:
    return chr(ord("a") + number // 26 % 26) + chr(ord("a") + number % 26)


def test_made_up_prompts_have_the_length_that_was_asked_for() -> None:
    options = DatasetOptions(num_prompts=5, random_input_len=20, random_prefix_len=7)
    prompts = load_prompts(options, WordCoder())
    assert [prompt.prompt_len for prompt in prompts] == [27] * 5
    contents = [str(prompt.content).split() for prompt in prompts]
    assert len({tuple(words[:7]) for words in contents}) == 1
    assert len({tuple(words[7:]) for words in contents}) == 5
    assert prompts == load_prompts(options, WordCoder())


def test_every_option_has_help_and_tells_its_default() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    add_arguments(parser)
    for action in parser._actions:
        assert action.help, action.option_strings
        told = "[" in action.help or action.default in (None, False) or not action.default
        assert told, f"{action.option_strings}: {action.help}"
