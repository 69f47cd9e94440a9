"""The messages between a front end and a core in another process, and how they become bytes.

    front end                      core process
      ROUTER  <------ Hello ---------  DEALER
      ROUTER  -------- Init ------->   DEALER
      PULL    <--- Ready | StartFailed PUSH
      ROUTER  AddRequest AbortRequests Call Shutdown ->  DEALER
      PULL    <- Outputs CallResult Dead                 PUSH

Every message is one msgpack frame that is decoded against its type: bytes that are no message raise WireError and
change nothing. Both sockets are unix-domain sockets in a folder only the user can enter (see socket_folder.py).
Every message of the core carries its incarnation, so that words of a dead predecessor are told apart.
"""

from __future__ import annotations

import logging
from typing import Any, TypeAlias

import msgspec

from octavo.config.engine_config import EngineConfig
from octavo.engine.info import EngineInfo
from octavo.words.messages import EngineCoreOutputs, EngineCoreRequest

PROTOCOL = 1
CORE_IDENTITY = b"core"


class WireError(ValueError):
    """Bytes that are not a message."""


class Init(msgspec.Struct, array_like=True, frozen=True, tag="init"):
    """What the core is to be. It logs what the front end would log: from ``log_level`` (a number) on."""

    config: EngineConfig
    incarnation: int
    log_level: int = logging.WARNING


class AddRequest(msgspec.Struct, array_like=True, frozen=True, tag="add"):
    request: EngineCoreRequest


class AbortRequests(msgspec.Struct, array_like=True, frozen=True, tag="abort"):
    request_ids: list[str]


class Call(msgspec.Struct, array_like=True, frozen=True, tag="call"):
    """A rare question, by name; ``args`` are plain values. Answered by the CallResult with the same id."""

    call_id: int
    name: str
    args: list[Any]


class Shutdown(msgspec.Struct, array_like=True, frozen=True, tag="shutdown"):
    """Stop now; requests in flight are dropped."""


class Hello(msgspec.Struct, array_like=True, frozen=True, tag="hello"):
    """The core process is up. Sent before anything heavy is imported."""

    protocol: int
    pid: int


class FromCore(msgspec.Struct, array_like=True, frozen=True):
    """What every later message of the core begins with."""

    incarnation: int


class Ready(FromCore, array_like=True, frozen=True, tag="ready"):
    info: EngineInfo


class StartFailed(FromCore, array_like=True, frozen=True, tag="start_failed"):
    """The core could not be built; the last line of ``reason`` is the root cause."""

    reason: str


class Outputs(FromCore, array_like=True, frozen=True, tag="outputs"):
    outputs: EngineCoreOutputs


class CallResult(FromCore, array_like=True, frozen=True, tag="result"):
    """The answer to a Call: plain values, or an error text (None = it went well)."""

    call_id: int
    result: Any
    error: str | None


class Dead(FromCore, array_like=True, frozen=True, tag="dead"):
    """The core's last words; the last line of ``reason`` is the root cause."""

    reason: str


ToCore: TypeAlias = Init | AddRequest | AbortRequests | Call | Shutdown
CoreMessage: TypeAlias = Ready | StartFailed | Outputs | CallResult | Dead

_encoder = msgspec.msgpack.Encoder()
_hello = msgspec.msgpack.Decoder(Hello)
_to_core = msgspec.msgpack.Decoder(ToCore)
_from_core = msgspec.msgpack.Decoder(CoreMessage)


def encode(message: Hello | ToCore | CoreMessage) -> bytes:
    """Bytes of a message. Raises TypeError for a value msgpack cannot carry (only Call and CallResult can hold one)."""
    try:
        return _encoder.encode(message)
    except OverflowError as error:
        raise TypeError(str(error)) from error


def decode_hello(data: bytes) -> Hello:
    return _decode(_hello, data)


def decode_to_core(data: bytes) -> ToCore:
    return _decode(_to_core, data)


def decode_from_core(data: bytes) -> CoreMessage:
    return _decode(_from_core, data)


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise WireError(f"{len(data)} bytes are no message: {error}") from error
