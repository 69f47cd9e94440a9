"""A core process that starts before anybody knows what it is to be."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import psutil
import pytest

from octavo.config.flat import config_from_kwargs
from octavo.engine.core_process import CoreProcess
from octavo.engine.process_client import ProcessClient
from octavo.engine.supervisor import supervised
from tests import waiting

soon = partial(waiting.soon, seconds=30.0)
CONFIG = config_from_kwargs(model="simulated", distributed_executor_backend="simulated", plugins="")


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the module ``slow_part`` writes when it is imported."""
    path = tmp_path / "imported"
    (tmp_path / "slow_part.py").write_text(f"open({str(path)!r}, 'w').close()\nraise RuntimeError('broken')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return path


def test_it_imports_what_takes_long_before_it_is_told_anything_and_then_becomes_the_core(marker: Path) -> None:
    core = CoreProcess(preload="slow_part")
    process = core.start()
    soon(marker.exists)
    assert core.start() is process
    client = ProcessClient(CONFIG, core=core)  # also though the module was broken: nothing needs it here
    assert client.pid == process.pid
    client.shutdown()
    assert process.returncode == 0
    assert not core.folder.path.exists()


def test_a_supervisor_takes_it_for_its_first_core_only() -> None:
    core = CoreProcess()
    first = core.start().pid
    supervisor = supervised(CONFIG, core)
    assert supervisor.pid == first
    psutil.Process(first).kill()
    soon(lambda: supervisor.stats.restarts == 1)
    assert supervisor.pid != first
    supervisor.shutdown()


def test_one_that_nobody_needed_ends_with_what_it_shared() -> None:
    core = CoreProcess()
    process = core.start()
    core.end()
    assert process.returncode is not None
    assert not core.folder.path.exists()
    core.end()
