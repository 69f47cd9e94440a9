"""A script in an interpreter of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from octavo.config.env import child_variables


def run(script: str, *args: str, first_path: Path | None = None) -> list[str]:
    """The lines that a fresh interpreter prints."""
    path = os.pathsep.join(map(str, filter(None, (first_path, *sys.path))))
    done = subprocess.run(
        [sys.executable, "-c", script, *args],
        capture_output=True,
        text=True,
        timeout=120,
        env=child_variables(PYTHONPATH=path),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
