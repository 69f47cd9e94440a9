"""The seam for adapters: who sees to it that each row of a step is computed with that of its request."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from octavo.words.lora import Adapter
from octavo.words.messages import NewRequestData


class Adapters(Protocol):
    """Keeps the adapter of each request, by slot of the request table."""

    def add(self, slot: int, request: NewRequestData) -> None: ...

    def remove(self, slot: int) -> None: ...

    def begin_step(self, slots: npt.NDArray[np.int64], query_start_loc: npt.NDArray[np.int32]) -> None:
        """The next forward pass has these requests, r in rows query_start_loc[r] : query_start_loc[r + 1]."""
        ...

    def note_repeats(self, num_times: int) -> None:
        """So many more passes had the same rows."""
        ...

    def take_failed(self) -> dict[str, str]:
        """Requests whose adapter could not be had since the last call, each with the reason."""
        ...

    def load(self, adapter: Adapter) -> None:
        """Have an adapter in memory before a request needs it. Safe in any thread. Raises RequestError."""
        ...

    def counters(self) -> dict[str, int]:
        """What was done since start."""
        ...


class NoAdapters:
    """LoRA is off."""

    def add(self, slot: int, request: NewRequestData) -> None:
        pass

    def remove(self, slot: int) -> None:
        pass

    def begin_step(self, slots: npt.NDArray[np.int64], query_start_loc: npt.NDArray[np.int32]) -> None:
        pass

    def note_repeats(self, num_times: int) -> None:
        pass

    def take_failed(self) -> dict[str, str]:
        return {}

    def load(self, adapter: Adapter) -> None:
        raise AssertionError("the front end refuses adapters where LoRA is off")

    def counters(self) -> dict[str, int]:
        return {}
