"""The benchmarks run on the model that counts; what they say of its speed is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.workload import Shape, random_prompts
from octavo.cli.main import main
from octavo.util.percentile import percentile

SHAPE = ["--input-len", "5", "--output-len", "4", "--num-threads", "1"]

SHARES = {
    "ceilings",
    "unit",
    "limit_s",
    "limit_share",
    "mbu",
    "mfu",
    "step_overhead_ms",
    "num_steps",
    "ceilings_changed",
}


def bench(tmp_path: Path, name: str, *flags: str) -> dict[str, Any]:
    output = tmp_path / "result.json"
    assert main(["bench", name, *flags, "--output-json", str(output)]) == 0
    result: dict[str, Any] = json.loads(output.read_text())
    return result


def test_throughput_counts_every_token(succ: Path, tmp_path: Path) -> None:
    result = bench(tmp_path, "throughput", "--model", str(succ), "--num-prompts", "6", "--prefix-len", "3", *SHAPE)
    assert set(result) - SHARES == {
        "elapsed_time",
        "num_requests",
        "total_num_tokens",
        "requests_per_second",
        "tokens_per_second",
        "output_tokens_per_second",
    }
    assert (result["num_requests"], result["total_num_tokens"]) == (6, 6 * (3 + 5 + 4))
    assert result["requests_per_second"] == pytest.approx(6 / result["elapsed_time"])
    assert result["output_tokens_per_second"] == pytest.approx(24 / result["elapsed_time"])


def test_latency_has_its_percentiles(succ: Path, tmp_path: Path) -> None:
    result = bench(tmp_path, "latency", "--model", str(succ), "--batch-size", "2", "--num-iters", "3", *SHAPE)
    assert len(result["latencies"]) == 3
    assert result["avg_latency"] == pytest.approx(sum(result["latencies"]) / 3)
    assert list(result["percentiles"]) == ["10", "25", "50", "75", "90", "99"]
    assert result["percentiles"]["50"] == sorted(result["latencies"])[1]


def test_figures_are_held_against_ceilings_of_the_same_run(succ: Path, tmp_path: Path) -> None:
    pytest.importorskip("octavo._native")
    result = bench(tmp_path, "throughput", "--model", str(succ), "--dtype", "float32", "--num-prompts", "2", *SHAPE)
    assert set(result) >= SHARES
    assert set(result["ceilings"]) >= {"read_gbps", "bf16_gflops", "int8_gops"}
    assert result["num_steps"] == 4  # the prompts, and three decode steps of both
    assert result["unit"] == "float32_gflops"
    assert result["ceilings"]["read_gbps"] > 0
    assert result["limit_share"] == pytest.approx(result["limit_s"] / result["elapsed_time"])
    assert min(result["mbu"], result["mfu"]) > 0
    assert 0 < result["step_overhead_ms"] <= 1e3 * result["elapsed_time"] / 4


def test_figures_without_native_kernels_are_left_out(succ: Path, tmp_path: Path) -> None:
    flags = ["--model", str(succ), "--num-iters", "1", "--kernels", "reference", *SHAPE]
    assert not SHARES & set(bench(tmp_path, "latency", *flags))


def test_a_profile_shows_every_part_of_every_step_and_every_op(succ: Path, tmp_path: Path) -> None:
    pytest.importorskip("octavo._native")
    trace = tmp_path / "trace.json"
    single_steps = ["--max-burst-ms", "0", *SHAPE]
    bench(tmp_path, "latency", "--model", str(succ), "--num-iters", "1", *single_steps, "--profile", str(trace))
    events = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    names = [event["name"] for event in events]
    assert [names.count(part) for part in ("prepare", "forward")] == [4, 4]
    assert all(names.count(part) >= 4 for part in ("schedule", "sample", "update", "output"))
    requests = [event["args"]["requests"] for event in events if event["name"] == "schedule"]
    assert requests[:4] == [[[0, 5]], [[5, 1]], [[6, 1]], [[7, 1]]]
    assert {event["cat"] for event in events} == {"core", "worker", "front end", "ops"}
    ops = [event for event in events if event["cat"] == "ops"]
    assert len(ops) % 4 == 0 and {"rms_norm", "linear"} <= {event["name"] for event in ops}
    assert not any(requests[4:])  # a last step without tokens tells the worker that the request is over


def test_startup_names_its_phases(succ: Path, tmp_path: Path) -> None:
    result = bench(tmp_path, "startup", "--model", str(succ), "--num-iters", "1", "--num-iters-warmup", "0")
    assert {"interpreter", "imports", "load weights", "warm up", "first_token"} <= set(result["phases"])
    assert sum(result["phases"].values()) <= result["time_to_first_token"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["throughput", "--num-prompts", "0"], "--num-prompts must be at least 1"),
        (["latency", "--batch-size", "0"], "--batch-size must be at least 1"),
        (["throughput", "--prefix-len", "-1"], "--prefix-len must be at least 0"),
        (["latency", "--num-iters", "0"], "--num-iters must be at least 1"),
        (["latency", "--profile", "/no/such/folder/x.json"], "does not exist"),
        (["throughput", "--output-json", "/no/such/folder/x.json"], "does not exist"),
        (["startup", "--model", "no-such-model", "--num-iters-warmup", "0"], "no-such-model"),
        (["startup", "--timeout", "0.01"], "took more than 0.01 s; allow more with --timeout"),
    ],
)
def test_wrong_usage_is_one_clear_line(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) in (1, 2)
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error


def test_prompts_share_their_prefix_and_nothing_else() -> None:
    prompts = [
        p["prompt_token_ids"]
        for p in random_prompts(Shape(num_prompts=3, input_len=8, output_len=1, prefix_len=4), 1000)
    ]
    assert {tuple(prompt[:4]) for prompt in prompts} == {tuple(prompts[0][:4])}
    assert len({tuple(prompt[4:]) for prompt in prompts}) == 3
    assert {len(prompt) for prompt in prompts} == {12}


def test_percentiles_are_interpolated() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0
