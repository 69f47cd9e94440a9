"""From the bytes of a request to a checked struct."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from octavo.server.api_error import ApiError

_WHERE = re.compile(r" - at `\$\.?(?P<path>[^`]*)`$")
_MAX_REMEMBERED = 1000
_MAX_NAMED = 20
_MAX_NAME = 100

logger = logging.getLogger(__name__)
T = TypeVar("T", bound=msgspec.Struct)


class BodyReader:
    """Reads and checks the JSON bodies of requests, of at most ``max_bytes``.

    Fields nobody knows are accepted; each is warned of once.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._warned: set[str] = set()

    async def read(self, request: Request, kind: type[T]) -> T:
        """The body as ``kind``. Raises ApiError: 413 where it is too large, 400 naming the field that is wrong."""
        value = parse_json(await _read(request, self.max_bytes))
        checked = as_struct(value, kind)
        known = known_fields(kind)
        self.warn_of(name for name in value if name not in known)
        return checked

    def warn_of(self, names: Iterable[str]) -> None:
        """Say once that fields with these names mean nothing here; of a flood of names the first few are enough."""
        if len(self._warned) >= _MAX_REMEMBERED:
            return
        short = (name[:_MAX_NAME] for name in names)
        if new := sorted(set(islice((name for name in short if name not in self._warned), _MAX_NAMED))):
            self._warned.update(new)
            logger.warning("Ignored fields of a request that are not known: %s", ", ".join(map(repr, new)))


def parse_json(data: bytes) -> Any:
    """The value that ``data`` says (an object without fields where it says nothing), or ApiError 400."""
    try:
        return msgspec.json.decode(data) if data else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}.") from error


def as_struct(value: Any, kind: type[T]) -> T:
    """Check ``value`` against ``kind``; ApiError 400 naming the field that is wrong."""
    if not isinstance(value, dict):
        raise ApiError(400, f"the body must be a JSON object, got {type(value).__name__}.")
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise _wrong_field(error) from error


@cache
def known_fields(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names a JSON object of this kind may have."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


async def _read(request: Request, max_bytes: int) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > max_bytes:
        raise _too_large(max_bytes)
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > max_bytes:
            raise _too_large(max_bytes)
        parts.append(part)
    return b"".join(parts)


def _too_large(max_bytes: int) -> ApiError:
    message = f"the body of a request may have {max_bytes} bytes (option max_request_bytes)."
    return ApiError(413, message, headers={"connection": "close"})


def _wrong_field(error: Exception) -> ApiError:
    text = str(error)
    where = _WHERE.search(text)
    path = where["path"] if where else ""
    message = text[: where.start()] if where else text
    if missing := re.search(r"missing required field `(\w+)`", message):
        path, message = f"{path}.{missing[1]}".strip("."), "this field is required"
    param = path.split(".")[0].split("[")[0] or None
    return ApiError(400, f"{path}: {message}." if path else f"{message}.", param=param)
