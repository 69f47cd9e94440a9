from __future__ import annotations

import json
import logging
import subprocess
import sys

_SCRIPT = """
import logging
from octavo.util.logs import adopt_logger, init_logging
init_logging(level="INFO", as_json={as_json}, process_name="core")
logging.getLogger("octavo.engine").info("ready in %d s", 2)
logging.getLogger("octavo.engine").debug("not shown")
logging.getLogger("other").info("not ours")
adopt_logger("adopted")
logging.getLogger("adopted.part").info("too little")
logging.getLogger("adopted.part").warning("heard of")
"""


def lines(*, as_json: bool) -> list[str]:
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT.format(as_json=as_json)], capture_output=True, text=True, check=True
    )
    assert run.stdout == ""
    return run.stderr.splitlines()


def test_a_line_names_its_process() -> None:
    line, adopted = lines(as_json=False)
    assert adopted.endswith(" heard of") and "(core pid=" in adopted
    assert line.startswith("INFO ")
    assert "(core pid=" in line
    assert line.endswith(" ready in 2 s")


def test_json_lines_are_one_object_each() -> None:
    found = [json.loads(line) for line in lines(as_json=True)]
    assert [(each["level"], each["process"], each["message"]) for each in found] == [
        ("INFO", "core", "ready in 2 s"),
        ("WARNING", "core", "heard of"),
    ]


def test_importing_the_package_sets_up_no_logging() -> None:
    assert logging.getLogger("octavo").handlers == []
