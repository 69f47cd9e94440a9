"""The kernel benchmark's arithmetic and shape; what it says of speed is not tested."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.bench.kernels import cliffs, worst_neighbour
from octavo.cli.main import main

pytest.importorskip("octavo._native")


def case(rows: int, us: float, name: str = "mlp.down", format: str = "Q4_K") -> dict[str, Any]:
    return {"name": name, "format": format, "rows": rows, "us": us, "us_per_row": us / rows}


def test_a_row_count_that_costs_more_per_row_than_a_lower_one_is_a_cliff() -> None:
    assert cliffs([case(4, 40.0), case(5, 60.0)]) == {"Q4_K": ["mlp.down: 5 rows take 1.20 x the time per row of 4"]}
    assert cliffs([case(4, 40.0), case(5, 54.0)]) == {"Q4_K": []}


def test_a_row_count_that_costs_more_in_all_than_a_higher_one_is_a_cliff() -> None:
    assert cliffs([case(7, 50.0), case(8, 40.0)]) == {"Q4_K": ["mlp.down: 7 rows take 1.25 x the time in all of 8"]}


def test_layers_and_formats_are_not_held_against_each_other() -> None:
    assert cliffs([case(1, 10.0, "a"), case(2, 90.0, "b")]) == {"Q4_K": []}
    assert cliffs([case(1, 10.0), case(2, 90.0, format="Q6_K")]) == {"Q4_K": [], "Q6_K": []}


def test_every_linear_of_the_model_and_its_attention_is_measured(
    succ: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "kernels.json"
    flags = ["--rows", "1,3", "--contexts", "8", "--repeats", "1", "--num-threads", "1", "--dtype", "float32"]
    assert main(["bench", "kernels", "--model", str(succ), *flags, "--output-json", str(output)]) == 0
    result = json.loads(output.read_text())
    names = ["attention.qkv", "attention.out", "mlp.gate_up", "mlp.down", "lm_head"]
    assert sorted({row["name"] for row in result["linear"]}) == sorted(names)
    assert [(row["rows"]) for row in result["linear"] if row["name"] == "mlp.down"] == [1, 3]
    assert [(row["rows"], row["requests"]) for row in result["attention"]] == [(1, 1), (1, 8), (8, 1)]
    assert all(row["share"] > 0 for row in result["linear"] + result["attention"])
    assert {row["format"] for row in result["linear"]} == set(result["cliffs"]) == {"float32"}
    assert "slower per token than its neighbours (medians):\n  float32" in capsys.readouterr().out


def test_reference_kernels_are_not_measured(succ: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "kernels", "--model", str(succ), "--kernels", "reference"]) == 2
    assert "measures native kernels" in capsys.readouterr().err


def test_the_worst_neighbour_is_named_where_there_is_no_cliff_too() -> None:
    cases = [case(4, 40.0, "a"), case(5, 52.0, "a"), case(8, 80.0, "a"), case(1, 10.0, "b"), case(2, 11.0, "b")]
    assert cliffs(cases) == {"Q4_K": []}
    assert worst_neighbour(cases) == "a: 5 rows take 1.04 x the time per row of 4"
    assert worst_neighbour(cases[:1]) == ""
