"""Who may still join the queue."""

from __future__ import annotations

from octavo.frontend.output_processor import OpenRequest
from octavo.words.errors import OverloadedError


class Admission:
    """Counts the requests that wait for their first token, each choice once, and refuses what is over the limits.

    A request is admitted to an empty queue whatever its size, so that every request that can be served is served.
    """

    def __init__(self, *, max_requests: int | None = None, max_tokens: int | None = None) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._queued: dict[OpenRequest, None] = {}
        self.num_requests = 0
        self.num_tokens = 0

    def check(self, num_choices: int, num_prompt_tokens: int) -> None:
        """Return if a request of that size may join, else raise OverloadedError."""
        if not self._queued:
            return
        self._check("requests", self.num_requests, num_choices, self._max_requests, "max_num_queued_reqs")
        num_tokens = num_choices * num_prompt_tokens
        self._check("prompt tokens", self.num_tokens, num_tokens, self._max_tokens, "max_num_queued_tokens")

    def add(self, request: OpenRequest) -> None:
        """The request waits from now on."""
        self._queued[request] = None
        self._count(request, 1)

    def remove(self, request: OpenRequest) -> None:
        """The request got its first token, or has ended; harmless when called again."""
        if request in self._queued:
            del self._queued[request]
            self._count(request, -1)

    def _count(self, request: OpenRequest, sign: int) -> None:
        self.num_requests += sign * len(request.choices)
        self.num_tokens += sign * len(request.choices) * len(request.prompt_token_ids)

    @staticmethod
    def _check(what: str, waiting: int, more: int, limit: int | None, option: str) -> None:
        if limit is not None and waiting + more > limit:
            raise OverloadedError(
                f"the server is busy: {waiting} {what} wait already and this request brings {more}, but at most "
                f"{limit} may wait (option {option}); try again later."
            )
