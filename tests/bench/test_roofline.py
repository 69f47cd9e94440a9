"""The machine's ceilings: that they are measured, not how high they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.bench.roofline import MachineProbe
from octavo.cli.main import main
from octavo.words.errors import ConfigError

native = pytest.importorskip("octavo._native")

QUICK = ["--repeats", "2", "--arena", "4MiB", "--multiply-seconds", "0.001", "--num-threads", "2"]


def test_the_command_tells_best_and_median_for_one_thread_and_for_all(tmp_path: Path) -> None:
    output = tmp_path / "roofline.json"
    assert main(["bench", "roofline", *QUICK, "--output-json", str(output)]) == 0
    result = json.loads(output.read_text())
    assert result["isa"] == native.active_isa()
    assert result["clock_ghz"] > 0
    for threads in (result["threads_1"], result["threads_2"]):
        for name in ("read_gbps", "copy_gbps", "float32_gflops"):
            assert threads[name]["best"] >= threads[name]["median"] > 0
        assert 0 < threads["barrier_us"]["best"] <= threads["barrier_us"]["median"]
    assert result["threads_1"]["barrier_spun"] is None
    assert 0 <= result["threads_2"]["barrier_spun"] <= 1


@pytest.mark.parametrize("isa", native.available_isas())
def test_every_instruction_set_has_its_ceilings(isa: str) -> None:
    try:
        probe = MachineProbe(1, isa, arena_bytes=1 << 20)
        ceilings = probe.ceilings(repeats=1, multiply_seconds=0.001)
    finally:
        native.set_isa("auto")
    assert probe.isa == isa
    assert ceilings.read_gbps > 0 and ceilings.float32_gflops > 0


def test_wrong_usage_is_told() -> None:
    with pytest.raises(ConfigError, match="cpu_isa=sse9 cannot be had"):
        MachineProbe(1, "sse9", arena_bytes=1 << 20)
    assert main(["bench", "roofline", "--repeats", "0"]) == 2
    assert main(["bench", "roofline", "--arena", "much"]) == 2


def test_an_unknown_multiply_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="no multiply unit float8"):
        native.multiply_rate(native.ThreadPool(1), "float8", 0.001)


def test_a_pool_knows_how_long_its_kernels_took() -> None:
    pool = native.ThreadPool(2)
    assert pool.seconds_in_run == 0
    pool.threads_of_tasks(100)
    once = pool.seconds_in_run
    pool.threads_of_tasks(100)
    assert 0 < once < pool.seconds_in_run
