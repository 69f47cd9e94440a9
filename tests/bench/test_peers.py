"""benchmarks/peers: its arithmetic, and that each of its commands runs from end to end with Octavo alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PEERS = Path(__file__).parents[2] / "benchmarks" / "peers"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The modules ``workloads`` and ``report``, which find each other as scripts do."""
    monkeypatch.syspath_prepend(str(PEERS))
    import report
    import workloads

    return workloads, report


def test_a_metric_counts_the_tokens_it_names(peers: tuple[ModuleType, ModuleType]) -> None:
    workloads, _ = peers
    sized = {"num_requests": 4, "input_len": 10, "output_len": 5, "prefix_len": 20}
    values = {
        metric: workloads.Workload("w", "w", **sized, metric=metric).value(2.0)
        for metric in ("output tok/s", "input tok/s", "total tok/s", "s")
    }
    assert values == {"output tok/s": 10.0, "input tok/s": 60.0, "total tok/s": 70.0, "s": 2.0}


def test_prompts_are_the_same_each_time_and_share_their_prefix_only(peers: tuple[ModuleType, ModuleType]) -> None:
    workloads, _ = peers
    workload = workloads.WORKLOADS["shared32"]
    prompts = workload.prompts(1000)
    assert prompts == workload.prompts(1000)
    assert {len(prompt) for prompt in prompts} == {1024 + 32}
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 1
    assert len({tuple(prompt[1024:]) for prompt in prompts}) == 32


def record_of(*runs: tuple[str, float]) -> dict[str, Any]:
    return {
        "model": "m",
        "rounds": 2,
        "workloads": ["single", "shared32"],
        "machine": {"cpu": "c", "num_threads": 2, "isa": "avx2"},
        "ceilings_before": None,
        "ceilings_after": None,
        "versions": {"octavo": "1"},
        "failures": {"vllm, 16 bits": "why not"},
        "runs": [
            {"engine": engine, "precision": "16 bits", "seconds": {"single": seconds, "shared32": seconds}}
            for engine, seconds in runs
        ],
    }


def test_a_ratio_above_one_is_faster_whatever_the_metric(peers: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    workloads, report = peers
    record = record_of(("octavo", 1.0), ("other", 4.0), ("octavo", 3.0), ("other", 4.0), ("octavo", 2.0))
    for name in ("single", "shared32"):
        assert report.ratios_of(record, "16 bits", workloads.WORKLOADS[name]) == {"other": 2.0}
    text = report.markdown(record)
    assert "| 2.00 (other) |" in text
    assert "vllm, 16 bits: why not" in text
    pytest.importorskip("matplotlib")
    report.draw(record, tmp_path / "ratios.png")
    assert (tmp_path / "ratios.png").stat().st_size > 0


def test_a_result_is_found_among_an_engines_own_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(PEERS))
    import run

    assert run.result_in('loading\n{"version": "1", "seconds": {}}\n{shut down}\n') == {"version": "1", "seconds": {}}
    with pytest.raises(ValueError, match="no result"):
        run.result_in("loading\n")


def test_the_command_measures_and_reports(succ: Path, tmp_path: Path) -> None:
    pytest.importorskip("octavo._native")
    flags = ["--peers", "", "--precisions", "the file", "--workloads", "startup,tiny", "--rounds", "1"]
    folders = ["--work-dir", str(tmp_path / "work"), "--output-dir", str(tmp_path / "out")]
    command = [sys.executable, str(PEERS / "run.py"), "--model", str(succ), "--num-threads", "1", *flags, *folders]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "peers.json").read_text())
    assert record["failures"] == {}
    assert [set(run["seconds"]) for run in record["runs"]] == [{"startup", "tiny"}] * 2
    assert "2 x 16+4" in (tmp_path / "out" / "peers.md").read_text()


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """The modules ``lengths`` and ``serving_report``."""
    monkeypatch.syspath_prepend(str(PEERS))
    import lengths
    import serving_report

    return lengths, serving_report


def test_lengths_are_the_same_each_time_bounded_and_spread(serving: tuple[ModuleType, ModuleType]) -> None:
    lengths, _ = serving
    inputs, outputs = zip(*lengths.sharegpt_like(0), strict=True)
    assert lengths.sharegpt_like(0) == list(zip(inputs, outputs, strict=True)) != lengths.sharegpt_like(1)
    for values, bounds in ((inputs, lengths.INPUT), (outputs, lengths.OUTPUT)):
        assert bounds.lowest <= min(values) and max(values) <= bounds.highest
        assert sum(values) / len(values) > bounds.median  # a few are long


def test_requests_are_written_in_the_lengths_that_were_drawn(
    serving: tuple[ModuleType, ModuleType], succ: Path, tmp_path: Path
) -> None:
    lengths, _ = serving
    lengths.write_requests([(3, 5), (30, 1), (30, 2)], str(succ), tmp_path / "requests.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert [line["output_tokens"] for line in lines] == [5, 1, 2]
    short, long, other = (line["prompt"] for line in lines)
    assert len(short) < len(long) and long != other


def test_the_servers_share_is_that_of_neighbours(serving: tuple[ModuleType, ModuleType]) -> None:
    _, report = serving
    runs = [("offline", 100.0), ("served", 90.0), ("offline", 50.0), ("served", 50.0)]
    record = {"closed": [{"kind": kind, "output_throughput": value} for kind, value in runs]}
    assert report.ratios(record) == [0.9, 1.0]


def test_the_servers_are_put_under_load_and_reported(succ: Path, tmp_path: Path) -> None:
    pytest.importorskip("octavo._native")
    closed = ["--clients", "2", "--per-client", "2", "--input-len", "4", "--output-len", "3"]
    opened = ["--rate", "4", "--seconds", "0.5", "--goodput", "ttft:60000", "itl:60000"]
    folders = ["--work-dir", str(tmp_path / "work"), "--output-dir", str(tmp_path / "out")]
    flags = ["--model", str(succ), "--num-threads", "1", "--peers", "--rounds", "1", *closed, *opened, *folders]
    command = [sys.executable, str(PEERS / "serving.py"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "out" / "serving.json").read_text())
    assert record["failures"] == {}
    assert [run["kind"] for run in record["closed"]] == ["offline", "served"]
    assert record["closed"][1]["total_output_tokens"] == 4 * 3
    (run,) = record["open"]
    assert run["completed"] == 2 and run["request_goodput"] == pytest.approx(2 / run["duration"])
    assert "server / offline" in done.stdout and "| octavo, the file |" in done.stdout
