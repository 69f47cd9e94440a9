"""Connections to the real HTTP server around an application that says back what it was sent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from octavo.config.server import ServerConfig
from octavo.server.app import build_gate
from octavo.server.http_protocol import limited_protocol
from octavo.server.launch import bind
from octavo.server.running import HttpServer
from tests.server.test_gate import make_context
from tests.waiting import soon

READ_TIMEOUT_S = 0.4
NUM_PIECES = 8


async def echo(request: Request) -> Response:
    return PlainTextResponse(await request.body())


async def pieces(request: Request) -> Response:
    """An answer that takes longer than a request may."""

    async def slowly() -> AsyncIterator[bytes]:
        for number in range(NUM_PIECES):
            yield b"%d" % number
            await asyncio.sleep(2 * READ_TIMEOUT_S / NUM_PIECES)

    return StreamingResponse(slowly())


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    app = Starlette(routes=[Route("/echo", echo, methods=["GET", "POST"]), Route("/pieces", pieces)])
    config = uvicorn.Config(
        build_gate(app, make_context(), []),
        http=limited_protocol(4096, READ_TIMEOUT_S),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
    )
    with bind(ServerConfig(port=0)) as listener:
        server = HttpServer(config)

        def serve() -> None:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.serve(sockets=[listener]))

        thread = threading.Thread(target=serve)
        thread.start()
        assert soon(lambda: server.started, 10)
        yield listener.getsockname()
        server.should_exit = True
        thread.join(10)


@pytest.fixture
def connect(address: tuple[str, int]) -> Iterator[Callable[[], socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(socket.create_connection(address, timeout=10))


def received(connection: socket.socket) -> bytes:
    """All that comes until the server closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def post(body: bytes = b"hello", *headers: bytes) -> bytes:
    lines = (b"POST /echo HTTP/1.1", b"Host: x", b"Content-Length: %d" % len(body), *headers)
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


LAST = b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize("piece", [1, 7, 40, 10_000])
def test_an_offer_of_http2_is_answered_in_http1(connect: Callable[[], socket.socket], piece: int) -> None:
    """Java's client makes it with every request."""
    offer = (b"Connection: Upgrade, HTTP2-Settings", b"HTTP2-Settings: AAEAAEAAAAIAAAAA", b"Upgrade: h2c")
    sent = post(b"hello", *offer) + post(b"again", *offer) + LAST
    connection = connect()
    for start in range(0, len(sent), piece):
        connection.sendall(sent[start : start + piece])
    answer = received(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == 3
    assert answer.index(b"hello") < answer.index(b"again")


def test_a_tunnel_is_no_request(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(b"CONNECT example.com:80 HTTP/1.1\r\nHost: x\r\n\r\n")
    assert received(connection).startswith(b"HTTP/1.1 400 ")


def test_requests_sent_in_one_go_are_answered_in_their_order(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(b"".join(post(b"<%d>" % number) for number in range(50)) + LAST)
    answer = received(connection)
    places = [answer.index(b"<%d>" % number) for number in range(50)]
    assert places == sorted(places)


@pytest.mark.parametrize("part", [post()[:10], post(b"short")[:-2], post() + post()[:20]])
def test_a_request_that_never_comes_whole_is_given_up(
    connect: Callable[[], socket.socket], caplog: pytest.LogCaptureFixture, part: bytes
) -> None:
    connection = connect()
    connection.sendall(part)
    answer = received(connection)
    assert answer.count(b"HTTP/1.1 200 OK") == part.count(b"hello")
    assert answer.count(b"HTTP/1.1 408 Request Timeout") == 1
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []


def test_a_client_that_says_nothing_is_told_nothing(connect: Callable[[], socket.socket]) -> None:
    assert received(connect()) == b""


def test_an_answer_is_not_cut_by_half_a_request_behind_it(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(b"GET /pieces HTTP/1.1\r\nHost: x\r\n\r\n" + post()[:10])
    answer = received(connection)
    assert all(b"\r\n%d\r\n" % number in answer for number in range(NUM_PIECES))
    assert answer.index(b"\r\n0\r\n\r\n") < answer.index(b"HTTP/1.1 408 Request Timeout")


def test_a_connection_that_is_reset_leaves_no_word_in_the_log(
    connect: Callable[[], socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for request in (post()[:-2], LAST.replace(b"/echo", b"/pieces")) * 4:
        connection = connect()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(request)
        if b"/pieces" in request:
            assert b"200 OK" in connection.recv(100)
        connection.close()
    connection = connect()
    connection.sendall(LAST)
    assert b"200 OK" in received(connection)
    assert [record.getMessage() for record in caplog.records if record.levelno > logging.INFO] == []
