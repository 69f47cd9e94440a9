"""Torch's library is there when torch is imported, if there is one."""

from __future__ import annotations

from pathlib import Path

from tests.fresh_python import run

LOADED = """
import sys, threading
from octavo.device.platform.torch_library import begin_loading_torch
begin_loading_torch()
threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
for thread in threads: thread.join()
print(len(threads), "libtorch_cpu" in open("/proc/self/maps").read(), "torch" in sys.modules)
"""


def test_torchs_library_is_loaded_by_a_thread_and_found_by_import_torch() -> None:
    assert run(f"{LOADED}import torch\nprint(torch.ones(2).sum().item())") == ["1 True False", "2.0"]


def test_a_torch_without_that_library_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").write_text("")
    assert run(LOADED, first_path=tmp_path) == ["0 False False"]
