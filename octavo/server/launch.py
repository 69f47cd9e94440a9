"""The life of ``octavo serve``: bind, answer "loading", start the engine, serve, end.

The socket is bound before anything slow happens. Then the core process starts, which begins with the imports that take
longest, and a small responder answers while this process imports the web framework.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from octavo.config.flat import EngineArgs
from octavo.config.server import ServerConfig
from octavo.engine.core_process import CoreProcess
from octavo.plan.executor import executor_backend
from octavo.server.startup_responder import StartupResponder
from octavo.words.errors import ConfigError, ListenError

if TYPE_CHECKING:
    import ssl

    from octavo.frontend.async_llm import AsyncLLM

BACKLOG = 2048

WORKER_MODULE = "octavo.device.worker.build"

logger = logging.getLogger(__name__)


def serve(args: EngineArgs, config: ServerConfig) -> int:
    """Serve until told to stop; the exit code: 0 after a requested stop, 1 when the engine failed.

    Raises ListenError for a port that is taken, ConfigError for keys that cannot be read.
    """
    end_at_once = EndAtOnce()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_at_once)  # until the event loop takes them over
    api_keys = read_api_keys(config)
    tls = read_tls(config)
    _check_parsers(config)
    listener = bind(config)
    end_at_once.socket_path = config.uds
    logger.info("Listening on %s; the model is loading", address_of(listener, config))
    core = end_at_once.core = _make_core(args)
    with contextlib.suppress(OSError):  # its client tries again, and tells
        core.start()
    responder = StartupResponder(listener, tls)
    starting = _in_thread(partial(_start_engine, args, core))
    try:
        from octavo.server.running import run_server

        return run_server(args, config, api_keys, listener, responder, starting)
    finally:
        responder.stop()
        core.end()
        listener.close()
        if config.uds is not None:
            Path(config.uds).unlink(missing_ok=True)


class EndAtOnce:
    """Answers a signal while nothing is served yet: the core ends and then, there and then, this process.

    It raises nothing: in the midst of an import, which is what goes on then, an exception may be lost, or leave the
    interpreter's import lock to nobody, for which the exit handlers would wait for ever.
    """

    def __init__(self) -> None:
        self.core: CoreProcess | None = None
        self.socket_path: str | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.core is not None:
            self.core.end()
        if self.socket_path is not None:
            Path(self.socket_path).unlink(missing_ok=True)
        os._exit(0)


def bind(config: ServerConfig) -> socket.socket:
    """The listening socket. Raises ListenError where the address cannot be had."""
    if config.uds is not None:
        return _bind_unix(config.uds)
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(
            f"cannot listen on {config.host} port {config.port}: {error.strerror or error}; choose another --port "
            "or --host."
        ) from error
    return listener


def _bind_unix(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        os.chmod(path, 0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"cannot listen on {path}: {error.strerror or error}; choose another --uds.") from error
    return listener


def address_of(listener: socket.socket, config: ServerConfig) -> str:
    """Where clients find the server."""
    if config.uds is not None:
        return f"unix:{config.uds}"
    host, port = listener.getsockname()[:2]
    scheme = "http" if config.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def read_api_keys(config: ServerConfig) -> list[str]:
    """Every key that opens the server. Raises ConfigError for a file that cannot be read or holds none."""
    keys = [key for part in (config.api_key or "").split(",") if (key := part.strip())]
    if config.api_key is not None and not keys:
        raise ConfigError("api_key is empty: give a key, or leave the option out to serve without one.")
    if config.api_key_file is not None:
        try:
            lines = Path(config.api_key_file).read_text().splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_key_file {config.api_key_file!r} cannot be read: {error}") from error
        found = [key for line in lines if (key := line.strip())]
        if not found:
            raise ConfigError(f"api_key_file {config.api_key_file!r} holds no key.")
        keys += found
    return keys


def read_tls(config: ServerConfig) -> ssl.SSLContext | None:
    """What HTTPS is served with, None for HTTP. Raises ConfigError for a key or certificate that cannot be used."""
    if config.ssl_keyfile is None and config.ssl_certfile is None:
        return None
    if config.ssl_keyfile is None or config.ssl_certfile is None:
        raise ConfigError("HTTPS needs both ssl_keyfile and ssl_certfile.")
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)
    except OSError as error:
        files = f"ssl_certfile {config.ssl_certfile!r} with ssl_keyfile {config.ssl_keyfile!r}"
        raise ConfigError(f"{files} cannot be used: {error}") from error
    return context


def _check_parsers(config: ServerConfig) -> None:
    if (config.tool_call_parser, config.reasoning_parser) != ("auto", "auto"):  # else nothing need be imported yet
        from octavo.server.dialect import check_parsers

        check_parsers(config)


def _make_core(args: EngineArgs) -> CoreProcess:
    has_worker = executor_backend(args.create_engine_config()) == "uni"
    return CoreProcess(preload=WORKER_MODULE if has_worker else "")


def _start_engine(args: EngineArgs, core: CoreProcess) -> AsyncLLM:
    from octavo.engine.client import make_supervised_client
    from octavo.frontend.async_llm import AsyncLLM

    return AsyncLLM.from_engine_args(args, make_client=partial(make_supervised_client, first=core))


def _in_thread(start_engine: Callable[[], AsyncLLM]) -> Future[AsyncLLM]:
    started: Future[AsyncLLM] = Future()

    def start() -> None:
        try:
            started.set_result(start_engine())
        except BaseException as error:
            started.set_exception(error)

    threading.Thread(target=start, name="octavo-start", daemon=True).start()
    return started
