"""Errors as clients see them: an HTTP status and an error object, without internals."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping

import msgspec
from starlette.requests import ClientDisconnect

from octavo.server.field_names import field_of
from octavo.words.errors import (
    EngineError,
    OverloadedError,
    RequestError,
    RequestTimeoutError,
)

CLIENT_CLOSED_REQUEST = 499
# What an SDK must not send again by itself: it would take as long, or fail, again.
NO_RETRY = {"x-should-retry": "false"}
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}
_INTERNALS = re.compile(r"0x[0-9a-fA-F]{6,}|(?<![\w.])/(?!v[12]/)(?:[\w.+-]+/)+[\w.+-]+")

logger = logging.getLogger(__name__)


class ApiError(Exception):
    """An answer that is an error. ``code`` is a word clients may branch on, or None; ``param`` the field at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = _INTERNALS.sub("...", message)
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def type(self) -> str:
        """OpenAI's word for the class of the error."""
        return _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    @property
    def body(self) -> dict[str, object]:
        """OpenAI's error object."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}


class ErrorDetail(msgspec.Struct, kw_only=True):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(msgspec.Struct, kw_only=True):
    """Every answer with a status of 400 or more."""

    error: ErrorDetail


def not_ready(message: str) -> ApiError:
    """The engine is not there yet, or not any more."""
    return ApiError(503, message, headers={"retry-after": "1"})


def as_api_error(error: BaseException, path: str = "") -> ApiError:
    """What a client of ``path`` is told; an error that nobody expected is logged, and only named an internal one."""
    match error:
        case ApiError():
            return error
        case RequestError():
            code = "context_length_exceeded" if "maximum context length" in str(error) else None
            field = field_of(path, error.param)
            return ApiError(400, _in_words_of_the_route(str(error), error.param, field), param=field, code=code)
        case ClientDisconnect():
            return client_gone()
        case RecursionError():
            return ApiError(400, "the body is nested too deeply.")
        case OverloadedError():
            seconds = str(max(1, math.ceil(error.retry_after_s)))
            return ApiError(503, str(error), code="overloaded", headers={"retry-after": seconds})
        case RequestTimeoutError():
            return ApiError(504, str(error), code="timeout", headers=NO_RETRY)
        case EngineError():
            logger.error("A request failed with the engine: %s", error)
            return not_ready("the engine is not available; its log says why.")
    logger.error("A request failed", exc_info=error)
    return ApiError(500, "internal error; the server's log says more.")


def _in_words_of_the_route(message: str, param: str | None, field: str | None) -> str:
    """A message that begins with the engine's name of a field, beginning with the request's."""
    if param is None or field is None or not message.startswith(f"{param} "):
        return message
    return field + message.removeprefix(param)


def client_gone() -> ApiError:
    """Nobody will read this answer."""
    return ApiError(CLIENT_CLOSED_REQUEST, "the client closed the connection.")


def failed_choice(reason: str | None, *, is_refused: bool = False) -> ApiError:
    """One request failed in the engine, and would again, or was refused there; the others go on."""
    if is_refused:
        return ApiError(400, f"{reason}")
    logger.error("A request ended with an error: %s", reason)
    return ApiError(500, f"the request failed in the engine: {reason or 'unknown reason'}", headers=NO_RETRY)
