from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from octavo.config.env import child_variables

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_a_pure_wheel_is_built_without_a_compiler(tmp_path: Path) -> None:
    pytest.importorskip("scikit_build_core", reason="building needs the development tools")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    variables = child_variables(OCTAVO_SKIP_NATIVE="1", CXX="/nowhere/c++")
    subprocess.run([*command, "--wheel-dir", str(tmp_path), str(ROOT)], check=True, env=variables)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "octavo/words/messages.py" in names
    assert "octavo/py.typed" in names
    assert [name for name in names if "_native" in name or name.startswith(("tests/", "csrc/"))] == []


def test_without_the_native_module_the_machine_is_still_described() -> None:
    script = """
import sys
sys.modules["octavo._native"] = None  # as where it was not built: importing it fails
from octavo.device.platform.detect import detect_caps
caps = detect_caps()
print(caps.has_native, "avx2" in caps.isa)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", str("avx2" in Path("/proc/cpuinfo").read_text())]
