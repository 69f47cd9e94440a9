"""What a core's parent can see without asking: that steps go on, and which requests the running ones hold.

A page of memory is shared by the two processes. The core's step loop writes to it (some microseconds a step); the
parent reads it when it likes, also after the core was killed. So a core that hangs in C code, is stopped, or waits
for ever on a device is told from one that works, without any thread or signal in the core.

    count u64 | state u8 | expected seconds f64 | length u32 | request ids, one a line

``count`` grows with every step that begins or ends. The ids are written between two changes of ``state``: whoever
finds UNSURE there knows that steps ran, but not whose.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from octavo.words.messages import SchedulerOutput

PAGE_BYTES = 64 << 10
COUNT = struct.Struct("=Q")
STATE = struct.Struct("=B")
REST = struct.Struct("=dI")
STATE_AT, REST_AT, IDS_AT = 8, 16, 32
IDLE, UNSURE, RUNNING = 0, 1, 2


class StepWatch(Protocol):
    """Is told by the core what it does."""

    def launched(self, step: SchedulerOutput) -> None:
        """A step begins."""

    def returned(self, step: SchedulerOutput) -> None:
        """The oldest step in flight has ended."""

    def lost(self) -> None:
        """All steps in flight were dropped."""

    def blame(self, request_ids: Sequence[str]) -> None:
        """If the core ends before the next step, it is because of these requests."""


class NoStepWatch:
    """Nobody looks."""

    def launched(self, step: SchedulerOutput) -> None:
        pass

    def returned(self, step: SchedulerOutput) -> None:
        pass

    def lost(self) -> None:
        pass

    def blame(self, request_ids: Sequence[str]) -> None:
        pass


class SharedStepWatch:
    """The core's end: writes to the page of an open file."""

    def __init__(self, fd: int) -> None:
        self._page = mmap.mmap(fd, PAGE_BYTES)
        self._count = 0
        self._times = StepTimes()
        self._in_flight: deque[tuple[SchedulerOutput, float]] = deque()

    def launched(self, step: SchedulerOutput) -> None:
        self._in_flight.append((step, time.monotonic()))
        self._write()

    def returned(self, step: SchedulerOutput) -> None:
        _, began = self._in_flight.popleft()
        self._times.note(step.total_num_scheduled_tokens, (time.monotonic() - began) / step.num_decode_steps)
        self._write()

    def lost(self) -> None:
        self._in_flight.clear()
        self._write()

    def blame(self, request_ids: Sequence[str]) -> None:
        self._write_ids(list(request_ids), 0.0)

    def _write(self) -> None:
        steps = [step for step, _ in self._in_flight]
        ids = list(dict.fromkeys(request_id for step in steps for request_id in step.num_scheduled_tokens))
        self._write_ids(ids, sum(map(self._expected_seconds, steps)))

    def _expected_seconds(self, step: SchedulerOutput) -> float:
        return self._times.expect(step.total_num_scheduled_tokens) * step.num_decode_steps

    def _write_ids(self, request_ids: list[str], expected_seconds: float) -> None:
        self._count += 1
        data = "\n".join(request_ids).encode()
        STATE.pack_into(self._page, STATE_AT, UNSURE)
        COUNT.pack_into(self._page, 0, self._count)
        if len(data) > PAGE_BYTES - IDS_AT:
            return
        REST.pack_into(self._page, REST_AT, expected_seconds, len(data))
        self._page[IDS_AT : IDS_AT + len(data)] = data
        STATE.pack_into(self._page, STATE_AT, RUNNING if data else IDLE)


class StepWatchPage:
    """The parent's end: owns the page. ``fd`` is what the core is given."""

    def __init__(self) -> None:
        self.fd = _anonymous_file()
        self._page = mmap.mmap(self.fd, PAGE_BYTES)

    @property
    def count(self) -> int:
        """How many steps have begun or ended."""
        return int(COUNT.unpack_from(self._page, 0)[0])

    @property
    def expected_seconds(self) -> float:
        """How long the steps in flight should take, from what earlier ones took; 0 where nothing is known."""
        return float(REST.unpack_from(self._page, REST_AT)[0])

    def running_ids(self) -> list[str] | None:
        """The requests of the steps in flight; None: there are some, and nobody knows which."""
        state = STATE.unpack_from(self._page, STATE_AT)[0]
        if state != RUNNING:
            return [] if state == IDLE else None
        length = REST.unpack_from(self._page, REST_AT)[1]
        return self._page[IDS_AT : IDS_AT + length].decode(errors="replace").split("\n")

    def close(self) -> None:
        """Give the page back; harmless when called again."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            self._page.close()
            os.close(fd)


class StepTimes:
    """Expects of a step what the last one with about as many tokens took, or else one with fewer, by the token.

    Time per token falls with the number of tokens, so the second is more than it will take.
    """

    def __init__(self) -> None:
        self._by_size: dict[int, tuple[int, float]] = {}

    def note(self, num_tokens: int, seconds: float) -> None:
        """Remember what a step took."""
        self._by_size[num_tokens.bit_length()] = (max(num_tokens, 1), seconds)

    def expect(self, num_tokens: int) -> float:
        """Seconds that a step of this size should take at most; 0 where nothing is known."""
        for size in range(num_tokens.bit_length(), -1, -1):
            if size in self._by_size:
                known_tokens, seconds = self._by_size[size]
                return seconds * max(num_tokens / known_tokens, 1.0)
        return 0.0


def _anonymous_file() -> int:
    """A file without a name, in memory where the system can; it is gone with its last user."""
    with contextlib.suppress(AttributeError, OSError):
        fd = os.memfd_create("octavo-step-watch")
        os.ftruncate(fd, PAGE_BYTES)
        return fd
    with tempfile.TemporaryFile() as file:
        file.truncate(PAGE_BYTES)
        return os.dup(file.fileno())
