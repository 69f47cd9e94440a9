"""The process of an engine core, which may be started before anybody knows what it is to be.

Its longest work, importing what workers are made of, then goes on while the parent still imports its own. A
ProcessClient tells it later what it is to be.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from octavo.config.env import child_variables
from octavo.engine.parent_watch import PARENTS_SIGNALS
from octavo.engine.socket_folder import SocketFolder
from octavo.engine.step_watch import StepWatchPage


class CoreProcess:
    """A core process and what it shares with its parent: the folder of its sockets, and the page of its step watch.

    ``preload`` names a module that it imports before all else; "": none.
    """

    def __init__(self, *, preload: str = "") -> None:
        self.folder = SocketFolder()
        self.watch = StepWatchPage()
        self._preload = preload
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, unless that is done. Raises OSError.

        To be called first in a thread that lives as long as the process: on Linux that ends with it.
        """
        if self._process is None:
            # The child inherits our blocked signals: they cannot hit it before it has learnt to ignore them.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
            try:
                self._process = self._spawn()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._process

    def end(self) -> None:
        """End it at once, whoever uses it, and remove its folder; harmless when called again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self.folder.remove()

    def _spawn(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.folder.path), str(os.getpid()), str(self.watch.fd), self._preload]
        command = [sys.executable, "-P", "-m", "octavo.engine.core_proc", *arguments]
        # Whatever the user's script can import (a worker class, a plugin, octavo itself), the core can.
        python_path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path)
        environment = child_variables(PYTHONPATH=python_path)
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, pass_fds=(self.watch.fd,))
