"""Responses that may be asked for again, in memory, within a limit."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from octavo.server.api_error import ApiError

# What an entry costs beside its text: objects, keys, the ordered dictionary.
ENTRY_BYTES = 2048


@dataclass(frozen=True)
class StoredResponse:
    """An answer as it was sent, and the conversation that ends with it."""

    body: bytes
    messages: list[dict[str, Any]]
    num_bytes: int


class ResponseStore:
    """Keeps responses of at most ``max_bytes`` together; the oldest go first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    def put(self, response_id: str, body: bytes, messages: list[dict[str, Any]], text_bytes: int) -> None:
        """Keep a response whose conversation has ``text_bytes``, if there is room for one of its size at all."""
        stored = StoredResponse(body, messages, len(body) + 2 * text_bytes + ENTRY_BYTES)
        self._responses[response_id] = stored
        self.num_bytes += stored.num_bytes
        while self.num_bytes > self._max_bytes:
            _, oldest = self._responses.popitem(last=False)
            self.num_bytes -= oldest.num_bytes

    def get(self, response_id: str, *, param: str = "response_id") -> StoredResponse:
        """Raises ApiError 404, for what ``param`` names, for one that is not (or no more) kept."""
        if response_id not in self._responses:
            message = f"there is no response {response_id[:100]!r}; it may have been kept no longer."
            raise ApiError(404, message, param=param, code="response_not_found")
        return self._responses[response_id]

    def remove(self, response_id: str) -> None:
        """Keep it no more; ApiError 404 where it is not kept."""
        self.num_bytes -= self.get(response_id).num_bytes
        del self._responses[response_id]
