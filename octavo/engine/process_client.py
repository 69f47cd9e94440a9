"""The client of a core in a background process. See wire.py for the messages.

One thread per client starts the process, reads what it sends and sees it end; it lives as long as the process. The
caller's threads only send (under a lock) and wait on queues and futures, so any number of them may use one client.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

import msgspec
import zmq

from octavo.config.engine_config import EngineConfig
from octavo.engine import wire
from octavo.engine.core import CALL_RESULTS
from octavo.engine.core_process import CoreProcess
from octavo.engine.failure import describe_exit
from octavo.engine.info import EngineInfo
from octavo.engine.metric import Metric
from octavo.words.errors import EngineDeadError, EngineError, EngineStartError
from octavo.words.messages import EngineCoreOutputs, EngineCoreRequest

# Well under the 5 s in which a server ends, whatever its core does.
STOP_TIMEOUT_S = 2.0
# Last words sent just before the exit may arrive just after it.
LAST_WORDS_TIMEOUT_MS = 500
# Where the system cannot wake us when a process ends, look this often.
POLL_EXIT_MS = 100
READABLE = int(zmq.POLLIN)

logger = logging.getLogger(__name__)


OutputQueue: TypeAlias = queue.SimpleQueue[EngineCoreOutputs | None]
"""Outputs in the order they came; None = a core has ended."""


class ProcessClient:
    """Starts a core process and returns when it is ready. Raises EngineStartError with its root cause if it is not.

    ``outputs`` is the queue that outputs go to, if not to one of its own. With ``wait`` False it returns at once;
    ``wait_until_ready`` comes next then. ``core`` is a process that is there already, and is then its own.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        incarnation: int = 0,
        outputs: OutputQueue | None = None,
        wait: bool = True,
        core: CoreProcess | None = None,
    ) -> None:
        self._init = wire.Init(config, incarnation, logging.getLogger("octavo").getEffectiveLevel())
        self._owner_pid = os.getpid()
        self._ready: Future[EngineInfo] = Future()
        self._outputs: OutputQueue = queue.SimpleQueue() if outputs is None else outputs
        self._calls: dict[int, Future[Any]] = {}
        self._call_ids = itertools.count()
        self._lock = threading.Lock()
        self._cause_of_death: str | None = None
        self._reason_to_kill: str | None = None
        self._is_stopping = False
        self._process: subprocess.Popen[bytes] | None = None

        self._core = core or CoreProcess()
        self.watch = self._core.watch
        self._folder = self._core.folder
        self._context = zmq.Context()
        self._request_socket = self._bind(zmq.ROUTER, "requests")
        self._output_socket = self._bind(zmq.PULL, "outputs")
        self._thread = threading.Thread(target=self._live_with_core, name="octavo-core-client", daemon=True)
        self._thread.start()
        atexit.register(self.shutdown)
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return when the core is ready; if it is not to be, shut down and raise EngineStartError."""
        try:
            self._ready.result()
        except BaseException:
            self.shutdown()
            raise

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Whether the process is gone; waits for that as long as it is told to."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def info(self) -> EngineInfo:
        return self._ready.result()

    @property
    def problem(self) -> str | None:
        return self._cause_of_death

    @property
    def cause_of_death(self) -> str | None:
        """Why the core serves no more, root cause last; None while it does."""
        return self._cause_of_death

    @property
    def is_stopping(self) -> bool:
        """Whether ``shutdown`` was called."""
        return self._is_stopping

    @property
    def num_unanswered_calls(self) -> int:
        """Calls that the core has not answered."""
        return len(self._calls)

    def kill(self, reason: str) -> None:
        """End the core process at once; ``reason`` is then its cause of death."""
        with self._lock:
            self._reason_to_kill = reason
            if self._process is not None:
                self._process.kill()

    @property
    def pid(self) -> int:
        """Process id of the core."""
        if self._process is None:
            raise EngineDeadError("the engine core process was never started")
        return self._process.pid

    def add_request(self, request: EngineCoreRequest) -> None:
        self._send(wire.AddRequest(request))

    def abort_requests(self, request_ids: Sequence[str]) -> None:
        self._send(wire.AbortRequests(list(request_ids)))

    def get_output(self, *, blocking: bool = True) -> EngineCoreOutputs | None:
        self.check_owner()
        try:
            outputs = self._outputs.get(block=blocking)
        except queue.Empty:
            return None
        if outputs is None:
            self._outputs.put(None)  # for the next who waits
            raise self._dead()
        return outputs

    def call(self, name: str, *args: Any) -> Any:
        answer: Future[Any] = Future()
        call_id = next(self._call_ids)
        with self._lock:
            self._calls[call_id] = answer
        try:
            self._send(wire.Call(call_id, name, list(args)))
            return msgspec.convert(answer.result(), CALL_RESULTS.get(name, Any))
        finally:
            with self._lock:
                self._calls.pop(call_id, None)

    def check_health(self) -> None:
        self.call("check_health")

    def metrics(self) -> list[Metric]:
        return []

    def shutdown(self) -> None:
        # In a process forked from ours the core is not ours to stop, and our thread does not exist.
        if os.getpid() != self._owner_pid:
            return
        with self._lock:
            was_stopping, self._is_stopping = self._is_stopping, True
        if was_stopping:
            return
        atexit.unregister(self.shutdown)
        self._stop_core()
        self._thread.join()
        self._context.destroy(linger=0)
        self._folder.remove()
        self.watch.close()

    def _stop_core(self) -> None:
        if self._ready.done():
            with contextlib.suppress(EngineError):
                self._send(wire.Shutdown())
            self._thread.join(STOP_TIMEOUT_S)
        if self._thread.is_alive() and self._process is not None:
            self._process.kill()

    def _bind(self, kind: int, name: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.setsockopt(zmq.RCVHWM, 0)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.bind(self._folder.address(name))
        return socket

    def _send(self, message: wire.ToCore) -> None:
        self.check_owner()
        data = wire.encode(message)
        try:
            with self._lock:
                if self._cause_of_death is not None:
                    raise self._dead()
                self._request_socket.send(wire.CORE_IDENTITY, zmq.SNDMORE)
                self._request_socket.send(data)
        except zmq.ZMQError as error:  # the core is gone, and our thread is about to learn why
            self._thread.join(STOP_TIMEOUT_S)
            raise self._dead() from error

    def check_owner(self) -> None:
        """In a process forked from ours nobody reads the core's answers: it would wait for ever."""
        if os.getpid() != self._owner_pid:
            raise EngineError(
                f"this process (pid {os.getpid()}) was forked from the one that started the engine (pid "
                f"{self._owner_pid}), and only that one can use it; start another engine here."
            )

    def _dead(self) -> EngineDeadError:
        return EngineDeadError(self._cause_of_death or "the engine core process cannot be reached")

    # The thread

    def _live_with_core(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process = self._core.start()
        except OSError as error:
            self._end(f"cannot start {sys.executable!r}:\n{type(error).__name__}: {error}")
            return
        with self._lock:
            self._process = process
            if self._is_stopping or self._reason_to_kill is not None:
                process.kill()  # who wanted its end before it was there could not see to it
        self._read_until_exit(process)
        exit_code = process.wait()
        self._end(self._reason_to_kill or describe_exit(process.pid, exit_code))

    def _read_until_exit(self, process: subprocess.Popen[bytes]) -> None:
        poller = zmq.Poller()
        poller.register(self._request_socket, zmq.POLLIN)
        poller.register(self._output_socket, zmq.POLLIN)
        with _exit_descriptor(process.pid) as exit_fd:
            if exit_fd is not None:
                poller.register(exit_fd, zmq.POLLIN)
            is_over = False
            while not is_over:
                events = dict(poller.poll(None if exit_fd is not None else POLL_EXIT_MS))
                if self._request_socket in events and self._greet():
                    # From here on the socket belongs to the threads that send, under the lock.
                    poller.unregister(self._request_socket)
                if self._output_socket in events:
                    self._read_outputs()
                is_over = (exit_fd is None or exit_fd in events) and process.poll() is not None
        if process.returncode > 0:
            self._output_socket.poll(LAST_WORDS_TIMEOUT_MS)
        self._read_outputs()

    def _greet(self) -> bool:
        """Answer the core's Hello; anything else on this socket is ignored."""
        identity, *frames = self._request_socket.recv_multipart()
        try:
            hello = wire.decode_hello(b"".join(frames))
        except wire.WireError as error:
            logger.warning("Ignored a message: %s", error)
            return False
        if identity != wire.CORE_IDENTITY or hello.protocol != wire.PROTOCOL:
            logger.warning("Ignored a greeting of %r with protocol %d", identity, hello.protocol)
            return False
        self._request_socket.send_multipart([wire.CORE_IDENTITY, wire.encode(self._init)])
        return True

    def _read_outputs(self) -> None:
        while _is_readable(self._output_socket):
            data = self._output_socket.recv()
            try:
                message = wire.decode_from_core(data)
            except wire.WireError as error:
                logger.warning("Ignored a message: %s", error)
                continue
            if message.incarnation == self._init.incarnation:
                self._receive(message)

    def _receive(self, message: wire.CoreMessage) -> None:
        match message:
            case wire.Outputs(_, outputs):
                self._outputs.put(outputs)
            case wire.CallResult():
                self._answer_call(message)
            case wire.Ready(_, info):
                if not self._ready.done():
                    self._ready.set_result(info)
            case wire.StartFailed(_, reason) | wire.Dead(_, reason):
                self._end(reason)

    def _answer_call(self, result: wire.CallResult) -> None:
        with self._lock:
            waiting = self._calls.pop(result.call_id, None)
        if waiting is None:
            return
        if result.error is None:
            waiting.set_result(result.result)
        else:
            waiting.set_exception(EngineError(result.error))

    def _end(self, cause: str) -> None:
        """Record why the core is gone and wake everybody who waits for it. The first cause stands."""
        with self._lock:
            if self._cause_of_death is not None:
                return
            self._cause_of_death = "the engine was shut down" if self._is_stopping else cause
            waiting = list(self._calls.values())
            self._calls.clear()
        if not self._ready.done():
            self._ready.set_exception(EngineStartError(cause))
        self._outputs.put(None)
        for answer in waiting:
            answer.set_exception(self._dead())


def _is_readable(socket: zmq.Socket[bytes]) -> bool:
    events = socket.getsockopt(zmq.EVENTS)  # much cheaper than poll, which makes a poller
    assert isinstance(events, int)
    return bool(events & READABLE)


@contextlib.contextmanager
def _exit_descriptor(pid: int) -> Iterator[int | None]:
    """A descriptor that becomes readable when the process ends, or None where the system has none."""
    try:
        descriptor = os.pidfd_open(pid)
    except (AttributeError, OSError):
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
