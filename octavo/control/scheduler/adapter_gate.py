"""Holds back requests whose adapter would be one too many in a step."""

from __future__ import annotations

from octavo.control.request import Request, RequestStatus


class AdapterGate:
    """Lets running requests use at most ``max_adapters`` different adapters; a request without one is never held.

    It learns who runs from the requests that it let pass: each is asked again before it starts again.
    """

    def __init__(self, max_adapters: int) -> None:
        self._max_adapters = max_adapters
        self._users: dict[str, list[Request]] = {}

    def holds(self, request: Request) -> bool:
        if request.adapter is None:
            return False
        content_hash = request.adapter.content_hash
        if not self._runs(content_hash) and self._num_running() >= self._max_adapters:
            return True
        others = [user for user in self._users.pop(content_hash, ()) if _runs(user) and user is not request]
        self._users[content_hash] = [*others, request]
        return False

    def _num_running(self) -> int:
        for content_hash in [name for name in self._users if not self._runs(name)]:
            del self._users[content_hash]
        return len(self._users)

    def _runs(self, content_hash: str) -> bool:
        return any(map(_runs, self._users.get(content_hash, ())))


def _runs(request: Request) -> bool:
    return request.status is RequestStatus.RUNNING
