from __future__ import annotations

import json
import logging
import subprocess
import sys

_SCRIPT = """
import logging
from octavo.util.logs import init_logging
init_logging(level="INFO", as_json={as_json}, process_name="core")
logging.getLogger("octavo.engine").info("ready in %d s", 2)
logging.getLogger("octavo.engine").debug("not shown")
logging.getLogger("other").info("not ours")
"""


def lines(*, as_json: bool) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(as_json=as_json)], capture_output=True, text=True, check=True
    )
    assert run.stdout == ""
    return run.stderr.splitlines()


def test_a_line_names_its_process() -> None:
    (line,) = lines(as_json=False)
    assert line.startswith("INFO ")
    assert "(core pid=" in line
    assert line.endswith(" ready in 2 s")


def test_json_lines_are_one_object_each() -> None:
    (line,) = lines(as_json=True)
    found = json.loads(line)
    assert (found["level"], found["process"], found["message"]) == ("INFO", "core", "ready in 2 s")


def test_importing_the_package_sets_up_no_logging() -> None:
    assert logging.getLogger("octavo").handlers == []
