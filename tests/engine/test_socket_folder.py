from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

from octavo.engine.socket_folder import LONGEST_FOLDER, PREFIX, SocketFolder, remove_abandoned

HOLD_A_FOLDER = """
import sys, time
from pathlib import Path
from octavo.engine.socket_folder import SocketFolder
folder = SocketFolder(Path(sys.argv[1]))
print(folder.path, flush=True)
time.sleep(60)
"""


def test_the_folder_is_private_and_goes_when_removed(tmp_path: Path) -> None:
    folder = SocketFolder(tmp_path)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_a_living_owner_stays(tmp_path: Path) -> None:
    folder = SocketFolder(tmp_path)
    assert remove_abandoned(tmp_path) == []
    assert folder.path.is_dir()
    folder.remove()


def test_the_folder_of_a_killed_owner_is_removed_by_the_next_start(tmp_path: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", HOLD_A_FOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    abandoned = Path(owner.stdout.readline().strip())
    (abandoned / "requests").touch()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    assert abandoned.is_dir()

    folder = SocketFolder(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [folder.path.name]
    folder.remove()


def test_a_folder_in_the_making_and_strange_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}unlocked").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(tmp_path / "other", target_is_directory=True)
    assert remove_abandoned(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 3


def test_socket_paths_fit_into_an_address() -> None:
    folder = SocketFolder()
    assert len(os.fsencode(folder.path)) <= LONGEST_FOLDER
    folder.remove()


def test_open_descriptors_do_not_grow(tmp_path: Path) -> None:
    def num_descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = num_descriptors()
    for _ in range(3):
        SocketFolder(tmp_path).remove()
    assert num_descriptors() == before
