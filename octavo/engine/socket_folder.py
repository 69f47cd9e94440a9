"""A private folder for the unix-domain sockets of one engine, which never outlives its owner for long.

The owner keeps a lock on a file in the folder. A folder whose lock is free belonged to a process that was killed:
the next engine to start removes it. Locks, unlike process ids, are never reused and work across pid namespaces.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX = "octavo-sockets-"
LOCK = "lock"
# sun_path holds 108 bytes on Linux and 104 elsewhere; the longest socket name here is 12.
LONGEST_FOLDER = 90


class SocketFolder:
    """Makes the folder (mode 0700) and removes the folders of dead owners; ``remove`` ends it."""

    def __init__(self, parent: Path | None = None) -> None:
        parent = parent or _parent_for_sockets()
        remove_abandoned(parent)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        self._lock_fd = _take_lock(self.path)

    def address(self, name: str) -> str:
        """ZMQ address of the socket ``name`` in this folder."""
        return f"ipc://{self.path / name}"

    def remove(self) -> None:
        """Remove the folder with everything in it; harmless when called again."""
        lock_fd, self._lock_fd = self._lock_fd, -1
        if lock_fd >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(lock_fd)


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove the socket folders of this user in ``parent`` that no living process holds; return them."""
    removed = []
    for folder in _own_folders(parent):
        if _is_abandoned(folder / LOCK):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    return removed


def _parent_for_sockets() -> Path:
    parent = Path(tempfile.gettempdir())
    return parent if len(os.fsencode(parent)) + len(PREFIX) + 8 <= LONGEST_FOLDER else Path("/tmp")


def _take_lock(folder: Path) -> int:
    # Locked before it gets the name that remove_abandoned looks for: a folder being made is never taken for a dead one.
    unnamed = folder / "lock.new"
    fd = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    unnamed.rename(folder / LOCK)
    return fd


def _own_folders(parent: Path) -> Iterator[Path]:
    for entry in os.scandir(parent):
        if entry.name.startswith(PREFIX) and entry.is_dir(follow_symlinks=False):
            try:
                owner = entry.stat(follow_symlinks=False).st_uid
            except FileNotFoundError:
                continue
            if owner == os.getuid():
                yield Path(entry.path)


def _is_abandoned(lock: Path) -> bool:
    try:
        fd = os.open(lock, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
