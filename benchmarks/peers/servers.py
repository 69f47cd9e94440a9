"""How each engine's server is started and ended; one is alive at a time."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from environments import Environments, variables
from models import Models

POLL_S = 0.1
END_TIMEOUT_S = 15
LAST_CHARACTERS = 400


class ServerFailed(Exception):
    """A server that did not start; the message has its last words."""


@dataclass(frozen=True)
class Server:
    """One engine's server at one precision; in its command, ``{port}`` stands for the port."""

    engine: str
    precision: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    @contextmanager
    def running(self, log: Path, timeout_s: float) -> Iterator[str]:
        """The address of the server once it is healthy; at the end nothing it started is left. Raises ServerFailed."""
        port = free_port()
        command = [part.format(port=port) for part in self.command]
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=self.environment, start_new_session=True
            )
        try:
            url = f"http://127.0.0.1:{port}"
            if not until_healthy(process, url, timeout_s):
                raise ServerFailed(log.read_text(errors="replace").strip()[-LAST_CHARACTERS:])
            yield url
        finally:
            end(process)


@dataclass(frozen=True)
class Servers:
    """What servers are made from. All serve the same lengths and as many requests at once."""

    environments: Environments
    models: Models
    num_threads: int
    fast_dtype: str = "bfloat16"
    """What the CPU multiplies fastest, for servers that compute with the weights as they are."""
    max_model_len: int = 2048
    max_num_seqs: int = 64

    def server(self, engine: str) -> Server:
        """Raises SetupFailed."""
        make: Callable[[], Server] = getattr(self, "_" + engine.replace(".", "_"))
        return make()

    @property
    def octavo_flags(self) -> tuple[str, ...]:
        """Also those of Octavo without a server."""
        return (*self._room, "--num-threads", str(self.num_threads))

    @property
    def _room(self) -> tuple[str, ...]:
        """Flags that Octavo and vLLM share."""
        return ("--max-model-len", str(self.max_model_len), "--max-num-seqs", str(self.max_num_seqs))

    def _octavo(self) -> Server:
        command = (sys.executable, "-m", "octavo.cli.main", "serve", str(self.models.gguf), "--port", "{port}")
        return Server("octavo", "the file", (*command, *self.octavo_flags, "--disable-access-log"))

    def _llama_cpp(self) -> Server:
        program = self.environments.llama_cpp("llama-server") / "llama-server"
        # Its context is cut into equal parts, one for each request at once.
        room = ("-np", str(self.max_num_seqs), "-c", str(self.max_num_seqs * self.max_model_len))
        speed = ("-t", str(self.num_threads), "-tb", str(self.num_threads), "-b", "2048", "-ub", "512")
        command = (str(program), "-m", str(self.models.gguf), "--host", "127.0.0.1", "--port", "{port}")
        # Its kernels for AMX end with signal 4 (engine_llama_cpp.py); it has none for weights that are not repacked.
        no_amx = ("--no-repack",) if "amx_int8" in Path("/proc/cpuinfo").read_text() else ()
        return Server("llama.cpp", "the file", (*command, *room, *speed, *no_amx))

    def _vllm(self) -> Server:
        python = self.environments.python("vllm")
        command = (str(python.with_name("vllm")), "serve", str(self.models.safetensors()), "--port", "{port}")
        options = ("--host", "127.0.0.1", "--dtype", self.fast_dtype, "--enforce-eager")
        # Its other processes turn in circles while they wait: they get a CPU that its threads do not compute on.
        environment = variables("vllm", python.parent.parent, max(1, self.num_threads - 1))
        return Server("vllm", self.fast_dtype, (*command, *options, *self._room), environment)


def free_port() -> int:
    """A port of this machine that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until_healthy(process: subprocess.Popen[bytes], url: str, timeout_s: float) -> bool:
    """Whether ``/health`` answers 200 in time; False at once when the process ends."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return True
        except (urllib.error.URLError, OSError):
            time.sleep(POLL_S)
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask the server to end, then see to it that its whole group has."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
