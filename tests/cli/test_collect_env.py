from __future__ import annotations

import json

import pytest

from octavo import __version__
from octavo.cli.main import main


def test_a_report_names_versions_and_the_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["octavo"]["version"] == __version__
    assert found["cpu"]["threads we may use"] >= 1
    assert found["packages"]["msgspec"]
    assert main(["collect-env"]) == 0
    assert f"version                    {__version__}" in capsys.readouterr().out
