"""A file of requests instead of clients: each line goes through the server's routes, and its answer into a file.

Format: OpenAI's batch files. A line is ``{"custom_id", "method": "POST", "url", "body"}``, an answer
``{"id", "custom_id", "response": {"status_code", "request_id", "body"}, "error"}``.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from octavo.config.server import ServerConfig
from octavo.frontend.async_llm import AsyncLLM
from octavo.server.app import build_app, build_gate
from octavo.server.body import BodyReader
from octavo.server.context import ServerContext
from octavo.server.engine_state import EngineState
from octavo.words.errors import ConfigError


def batch_app(llm: AsyncLLM, model_name: str) -> ASGIApp:
    """The server's routes over an engine that is ready, for requests that come from a file."""
    config = ServerConfig(served_model_name=model_name, disable_access_log=True)
    state = EngineState()
    state.set_ready(llm)
    bodies = BodyReader(config.max_request_bytes)
    context = ServerContext(state=state, config=config, model_names=(model_name,), bodies=bodies)
    return build_gate(build_app(context), context, api_keys=[])


class BatchLine(msgspec.Struct, kw_only=True):
    """A request of the file. Fields nobody knows are accepted."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


@dataclass(frozen=True)
class Answer:
    """What a route answered."""

    status: int
    request_id: str
    body: bytes


@dataclass
class Tally:
    """How a run went."""

    skipped: int = 0
    answered: int = 0
    failed: int = 0


async def run_batch(
    app: ASGIApp,
    source: Path,
    target: Path,
    *,
    max_concurrency: int,
    on_answer: Callable[[], None] = lambda: None,
) -> Tally:
    """Answer every line of ``source`` that ``target`` has no answer to yet; at most ``max_concurrency`` at once.

    A run that was cut off goes on where it was: an answer is there as a whole line or not at all. Answers with a
    status of 500 and more, and lines that could not be read, are tried again by the next run. Raises ConfigError for
    files that cannot be used.
    """
    lines, known = _lines(source), answered_ids(target)
    output = AnswerFile(target)
    tally, turn = Tally(), asyncio.Semaphore(max_concurrency)

    async def one(line: BatchLine) -> None:
        try:
            answer = await call(app, line)
            output.write(line.custom_id, answer=answer)
            tally.answered += answer.status == 200
            tally.failed += answer.status != 200
            on_answer()
        finally:
            turn.release()

    try:
        async with asyncio.TaskGroup() as tasks:
            for number, text in lines:
                line = parse_line(text, number)
                if isinstance(line, str):
                    output.write(None, error=line)
                    tally.failed += 1
                elif line.custom_id in known:
                    tally.skipped += 1
                else:
                    known.add(line.custom_id)
                    await turn.acquire()
                    tasks.create_task(one(line))
    except* OSError as errors:
        raise ConfigError(f"the output file {target}: {errors.exceptions[0]}") from errors
    finally:
        output.close()
    return tally


def parse_line(text: bytes, number: int) -> BatchLine | str:
    """The request that a line holds, or what is wrong with it."""
    try:
        line = msgspec.json.decode(text, type=BatchLine)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return f"line {number}: {error}"
    if line.method != "POST" or not line.url.startswith("/v1/"):
        return f"line {number}: {line.method} {line.url} cannot be in a batch; POST and a route under /v1/ can."
    if line.body.get("stream"):
        return f"line {number}: the answers of a batch are whole; leave stream out."
    return line


async def call(app: ASGIApp, line: BatchLine) -> Answer:
    """Hand a request to the application as a client's would be, without a socket."""
    body = msgspec.json.encode(line.body)
    incoming = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[Message] = []

    async def receive() -> Message:
        message = next(incoming, None)
        return message if message is not None else await asyncio.Future()  # this client never leaves

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": line.method,
        "path": line.url,
        "raw_path": line.url.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [*headers, (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
    }
    await app(scope, receive, send)
    start = next(message for message in sent if message["type"] == "http.response.start")
    found = dict(start["headers"])
    parts = (message.get("body", b"") for message in sent if message["type"] == "http.response.body")
    return Answer(start["status"], found.get(b"x-request-id", b"").decode(), b"".join(parts))


class AnswerFile:
    """Appends answers, each as one whole line."""

    def __init__(self, path: Path) -> None:
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise ConfigError(f"the output file {path}: {error.strerror}") from None

    def write(self, custom_id: str | None, *, answer: Answer | None = None, error: str | None = None) -> None:
        """Raises OSError where the disk is full; the line is then made whole, or dropped, by the next run."""
        response = None
        if answer is not None:
            body = json.loads(answer.body)
            response = {"status_code": answer.status, "request_id": answer.request_id, "body": body}
        line = {
            "id": f"batch_req_{secrets.token_hex(12)}",
            "custom_id": custom_id,
            "response": response,
            "error": None if error is None else {"code": "invalid_request", "message": error},
        }
        data = msgspec.json.encode(line) + b"\n"
        while data:  # a disk that fills up takes part of it first
            data = data[os.write(self._file, data) :]

    def close(self) -> None:
        os.close(self._file)


def answered_ids(target: Path) -> set[str]:
    """Ids that ``target`` has a lasting answer to. All other lines are taken out of it, a half one at its end too."""
    if not target.exists():
        return set()
    lines = target.read_bytes().splitlines(keepends=True)
    kept = {line: custom_id for line in lines if (custom_id := _lasting(line)) is not None}
    if len(kept) < len(lines):
        rest = target.with_name(target.name + ".part")
        rest.write_bytes(b"".join(kept))
        os.replace(rest, target)
    return set(kept.values())


def _lasting(line: bytes) -> str | None:
    """The id of an answer that another try would not change."""
    if not line.endswith(b"\n"):
        return None
    try:
        answer = msgspec.json.decode(line)
        lasts = answer["response"]["status_code"] < 500
        return str(answer["custom_id"]) if lasts else None
    except (msgspec.DecodeError, UnicodeDecodeError, LookupError, TypeError):
        return None


def _lines(source: Path) -> list[tuple[int, bytes]]:
    """Lines with their numbers, empty ones left out."""
    try:
        lines = source.read_bytes().splitlines()
        return [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    except OSError as error:
        raise ConfigError(f"the input file {source}: {error.strerror}") from None
