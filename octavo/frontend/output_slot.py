"""Where a coroutine waits for what comes of its request."""

from __future__ import annotations

import asyncio


class OutputSlot:
    """Where the reader of one request waits. It holds no output: those are made when the reader looks."""

    def __init__(self) -> None:
        self.is_ready = False
        self.deadline: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        """Something came."""
        self.is_ready = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def fail(self, error: Exception) -> None:
        """Nothing more will come."""
        self._error = error
        self.wake()

    async def wait(self) -> None:
        """Return when something came since the last call; raises the error that ended the request."""
        if not self.is_ready:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self.is_ready = False
        if self._error is not None:
            raise self._error
