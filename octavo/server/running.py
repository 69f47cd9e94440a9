"""uvicorn around the application, from the first request to the last."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future

import uvicorn
import uvloop

from octavo.config.flat import EngineArgs
from octavo.config.server import ServerConfig
from octavo.frontend.async_llm import AsyncLLM
from octavo.server.adapters import AdapterNames, parse_modules
from octavo.server.api_error import ApiError
from octavo.server.app import build_app, build_gate, words_of
from octavo.server.body import BodyReader
from octavo.server.context import ServerContext
from octavo.server.engine_state import EngineState
from octavo.server.http_protocol import limited_protocol
from octavo.server.startup_responder import StartupResponder
from octavo.util.logs import adopt_logger
from octavo.words.errors import OctavoError

BACKLOG = 2048
# So many new objects make the collector look at them. A request has some hundred that end with it: Python's 700 would
# have it look at most of them while they are in use.
YOUNG_OBJECTS = 20_000
KEEP_ALIVE_S = 65
WATCH_INTERVAL_S = 0.2
# How long answers may take to leave once the server stops.
GRACEFUL_TIMEOUT_S = 1
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

logger = logging.getLogger(__name__)


class HttpServer(uvicorn.Server):
    """uvicorn without its own handling of signals: ours decides."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def run_server(
    args: EngineArgs,
    config: ServerConfig,
    api_keys: list[str],
    listener: socket.socket,
    responder: StartupResponder,
    starting: Future[AsyncLLM],
) -> int:
    """Serve on ``listener`` in place of ``responder``; ``starting`` brings the engine. Returns the exit code."""
    names = tuple(words_of(config.served_model_name)) or (str(args.model),)
    context = ServerContext(
        state=EngineState(),
        config=config,
        model_names=names,
        bodies=BodyReader(config.max_request_bytes),
        adapters=AdapterNames(taken=names),
    )
    app = build_gate(build_app(context), context, api_keys)
    server = HttpServer(
        uvicorn.Config(
            app,
            http=limited_protocol(config.max_header_bytes, config.request_read_timeout),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACEFUL_TIMEOUT_S,
            ssl_keyfile=config.ssl_keyfile,
            ssl_certfile=config.ssl_certfile,
            root_path=config.root_path,
            proxy_headers=False,
        )
    )
    for library in ("uvicorn", "asyncio"):
        adopt_logger(library)
    gc.freeze()  # the framework's many objects stay: the collector need not look at them again
    gc.set_threshold(YOUNG_OBJECTS, *gc.get_threshold()[1:])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(server, context, listener, responder, starting))


async def _run(
    server: HttpServer,
    context: ServerContext,
    listener: socket.socket,
    responder: StartupResponder,
    starting: Future[AsyncLLM],
) -> int:
    loop = asyncio.get_running_loop()
    stop = _Stop(server, context)
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.ask)
    responder.stop()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        return await _follow(stop, context, asyncio.wrap_future(starting))
    finally:
        if starting.done() and starting.exception() is None:
            await asyncio.to_thread(starting.result().shutdown)  # who still waits for an answer is told so
        server.should_exit = True
        await serving


async def _follow(stop: _Stop, context: ServerContext, starting: asyncio.Future[AsyncLLM]) -> int:
    """Put the engine in its place when it is ready; the exit code once the server is to end."""
    while not stop.is_asked and not starting.done():
        await asyncio.wait([starting], timeout=WATCH_INTERVAL_S)
    if stop.is_asked:
        return 0
    try:
        for name, path in parse_modules(context.config.lora_modules).items():
            await context.adapters.add(starting.result(), name, path)
        context.state.set_ready(starting.result())
    except (OctavoError, ApiError) as error:
        logger.critical("The engine did not start: %s", error)
        return 1
    logger.info("Application startup complete.")
    llm = starting.result()
    while not llm.errored and not stop.is_due(llm.num_unfinished_requests):
        await asyncio.sleep(WATCH_INTERVAL_S)
    if llm.errored:
        logger.critical("The engine has failed; the server ends: %s", llm.dead_error)
        return 1
    return 0


class _Stop:
    """The wish to end: first let running answers end for a while, then, or when asked again, at once."""

    def __init__(self, server: HttpServer, context: ServerContext) -> None:
        self._server = server
        self._context = context
        self._due_at: float | None = None

    def ask(self) -> None:
        """Somebody wants the server to end: SIGTERM or Ctrl-C."""
        now = time.monotonic()
        if self._due_at is not None:
            self._due_at = now
            self._server.force_exit = True
            return
        self._due_at = now + self._context.config.shutdown_timeout
        self._context.state.set_stopping()
        logger.info("Stopping; running answers have %g s to end", self._context.config.shutdown_timeout)

    @property
    def is_asked(self) -> bool:
        """Whether anybody asked."""
        return self._due_at is not None

    def is_due(self, num_running: int) -> bool:
        """Whether to end now, with that many answers unfinished."""
        return self._due_at is not None and (not num_running or time.monotonic() >= self._due_at)
