"""What a core process does: connect to its parent, learn what it is to be, build a core, and run it until told to end.

The main thread runs the core and owns the output socket; one thread reads the input socket, decodes messages and
makes requests (with their block hashes) while a step runs. With nothing to do the main thread is blocked.

It ends when told to (0), on an error (1, after its last words) or when its parent dies.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import threading
from collections.abc import Callable
from functools import partial

import zmq

from octavo.config.env import read_environment
from octavo.engine import wire
from octavo.engine.build import build_engine_core
from octavo.engine.core import EngineCore
from octavo.engine.failure import describe_death, describe_failed_call, describe_failed_start
from octavo.engine.step_watch import SharedStepWatch
from octavo.util.collector import paused_collector
from octavo.util.logs import init_logging

INIT_TIMEOUT_MS = 60_000
# How long last words may take to leave; the parent reads them at once unless it is gone.
LINGER_MS = 2_000

# Until the parent's socket is there, look for it this often.
RECONNECT_MS = 10

logger = logging.getLogger(__name__)


class CoreLoop:
    """Runs a core for the client at the other end of two sockets. ``run`` owns ``requests`` from its call on."""

    def __init__(self, core: EngineCore, requests: zmq.Socket[bytes], outputs: zmq.Socket[bytes], incarnation: int):
        self._core = core
        self._requests = requests
        self._outputs = outputs
        self._incarnation = incarnation
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._running = True

    def run(self) -> None:
        """Work until told to stop. Raises what a step raises."""
        threading.Thread(target=self._read, name="octavo-core-input", daemon=True).start()
        while self._running:
            self._act_on_messages()
            for outputs in self._core.step().values() if self._running else ():
                self._outputs.send(wire.encode(wire.Outputs(self._incarnation, outputs)))

    def _act_on_messages(self) -> None:
        while self._running and (not self._core.has_work or not self._inbox.empty()):
            self._inbox.get()()

    def _read(self) -> None:
        """The input thread. Ends when the context is terminated, and closes its socket then."""
        try:
            while True:
                self._receive(self._requests.recv())
        except zmq.ContextTerminated:
            self._requests.close(linger=0)

    def _receive(self, data: bytes) -> None:
        try:
            self._inbox.put(self._action_for(wire.decode_to_core(data)))
        except wire.WireError as error:
            logger.warning("Ignored a message: %s", error)

    def _action_for(self, message: wire.ToCore) -> Callable[[], None]:
        match message:
            case wire.AddRequest(request):
                return self._core.admission(request)
            case wire.AbortRequests(request_ids):
                # Twice: at once for requests that run, and in order for one whose add is still in the inbox.
                self._core.abort_soon(request_ids)
                return partial(self._core.abort_requests, request_ids)
            case wire.Call():
                return partial(self._answer, message)
            case wire.Shutdown():
                return self._stop
            case wire.Init():
                raise wire.WireError("a second init message")

    def _stop(self) -> None:
        self._running = False

    def _answer(self, call: wire.Call) -> None:
        try:
            answer = self._core.call(call.name, *call.args)
            data = wire.encode(wire.CallResult(self._incarnation, call.call_id, answer, None))
        except Exception as error:
            logger.debug("Call %r failed", call.name, exc_info=error)
            failure = describe_failed_call(call.name, error)
            data = wire.encode(wire.CallResult(self._incarnation, call.call_id, None, failure))
        self._outputs.send(data)


def run_core(folder: str, watch_fd: int) -> int:
    """Connect, build the core, run it; return the exit code."""
    context = zmq.Context()
    requests = _connect(context, zmq.DEALER, f"ipc://{folder}/requests")
    outputs = _connect(context, zmq.PUSH, f"ipc://{folder}/outputs")
    try:
        requests.send(wire.encode(wire.Hello(wire.PROTOCOL, os.getpid())))
        init = _receive_init(requests)
        init_logging(
            level=logging.getLevelName(init.log_level),
            as_json=read_environment().logging_json,
            process_name="EngineCore",
        )
        return _serve(init, requests, outputs, SharedStepWatch(watch_fd))
    finally:
        outputs.close(linger=LINGER_MS)
        context.term()


def _connect(context: zmq.Context[zmq.Socket[bytes]], kind: int, address: str) -> zmq.Socket[bytes]:
    socket = context.socket(kind)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.RECONNECT_IVL, RECONNECT_MS)
    if kind == zmq.DEALER:
        socket.setsockopt(zmq.IDENTITY, wire.CORE_IDENTITY)
    socket.connect(address)
    return socket


def _receive_init(requests: zmq.Socket[bytes]) -> wire.Init:
    if not requests.poll(INIT_TIMEOUT_MS):
        raise TimeoutError(f"no init message within {INIT_TIMEOUT_MS // 1000} s")
    message = wire.decode_to_core(requests.recv())
    if not isinstance(message, wire.Init):
        raise wire.WireError(f"expected an init message, got {type(message).__name__}")
    return message


def _serve(init: wire.Init, requests: zmq.Socket[bytes], outputs: zmq.Socket[bytes], watch: SharedStepWatch) -> int:
    try:
        with paused_collector():
            core, info = build_engine_core(init.config, incarnation=init.incarnation, watch=watch)
    except Exception as error:
        logger.debug("The engine core did not start", exc_info=error)
        outputs.send(wire.encode(wire.StartFailed(init.incarnation, describe_failed_start(error))))
        requests.close(linger=0)
        return 1
    # What exists now lives as long as the process: the collector need not look at it again. There is a little garbage
    # in it, which is cheaper to keep than to find.
    gc.freeze()
    outputs.send(wire.encode(wire.Ready(init.incarnation, info)))
    try:
        CoreLoop(core, requests, outputs, init.incarnation).run()
    except Exception as error:
        logger.critical("The engine core failed", exc_info=error)
        outputs.send(wire.encode(wire.Dead(init.incarnation, describe_death(error))))
        return 1
    finally:
        core.shutdown()
    return 0
