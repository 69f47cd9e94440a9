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


_TALKER = """
import logging, sys, time
from octavo.util.logs import init_logging
init_logging()
logger = logging.getLogger("octavo.talker")
started = time.monotonic()
for number in range(20_000):
    logger.info("line %d of a log that nobody reads, and that is longer than a pipe takes without a reader", number)
print("said all", flush=True)
sys.stdin.read()
"""


def test_who_logs_never_waits_for_who_reads() -> None:
    talker = subprocess.Popen(
        [sys.executable, "-c", _TALKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert talker.stdout is not None
        assert talker.stdout.readline() == b"said all\n"  # though its stderr was not read once
        _, said = talker.communicate(timeout=30)
    finally:
        talker.kill()
    read = said.decode().splitlines()
    kept = [line for line in read if " of a log that nobody reads" in line]
    assert [f"line {number} of a log" in line for number, line in enumerate(kept)] == [True] * len(kept)
    assert f"{20_000 - len(kept)} log lines were dropped: whoever reads them was too slow" in said.decode()


def test_a_log_whose_reader_has_gone_harms_nobody() -> None:
    talker = subprocess.Popen(
        [sys.executable, "-c", _TALKER], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert talker.stderr is not None
    talker.stderr.close()
    said, _ = talker.communicate(timeout=30)
    assert said == b"said all\n" and talker.returncode == 0


def test_importing_the_package_sets_up_no_logging() -> None:
    assert logging.getLogger("octavo").handlers == []
