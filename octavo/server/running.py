"""uvicorn around the application, from the first request to the last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import Future

import uvicorn
import uvloop

from octavo.config.flat import EngineArgs
from octavo.config.server import ServerConfig
from octavo.frontend.async_llm import AsyncLLM
from octavo.server.app import build_app, build_gate, words_of
from octavo.server.body import BodyReader
from octavo.server.context import ServerContext
from octavo.server.engine_state import EngineState, Phase
from octavo.server.http_protocol import limited_protocol
from octavo.server.startup_responder import StartupResponder
from octavo.words.errors import OctavoError

BACKLOG = 2048
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
        state=EngineState(), config=config, model_names=names, bodies=BodyReader(config.max_request_bytes)
    )
    app = build_gate(build_app(context), context, api_keys)
    server = HttpServer(
        uvicorn.Config(
            app,
            http=limited_protocol(config.max_header_bytes),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACEFUL_TIMEOUT_S,
            root_path=config.root_path,
        )
    )
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
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, _stop, server, context)
    responder.stop()
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        return await _follow(server, context, asyncio.wrap_future(starting))
    finally:
        server.should_exit = True
        await serving
        if starting.done() and starting.exception() is None:
            await asyncio.to_thread(starting.result().shutdown)


async def _follow(server: HttpServer, context: ServerContext, starting: asyncio.Future[AsyncLLM]) -> int:
    """Put the engine in its place when it is ready; the exit code once the server is to end."""
    while not server.should_exit and not starting.done():
        await asyncio.wait([starting], timeout=WATCH_INTERVAL_S)
    if not starting.done():
        return 0
    try:
        context.state.set_ready(starting.result())
    except OctavoError as error:
        logger.critical("The engine did not start: %s", error)
        return 1
    logger.info("Application startup complete.")
    while not server.should_exit:
        if context.state.phase is Phase.DEAD:
            logger.critical("The engine has failed; the server ends")
            return 1
        await asyncio.sleep(WATCH_INTERVAL_S)
    return 0


def _stop(server: HttpServer, context: ServerContext) -> None:
    if server.should_exit:
        server.force_exit = True
    context.state.set_stopping()
    server.should_exit = True
