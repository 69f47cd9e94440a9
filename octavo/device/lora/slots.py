"""Puts the adapters of the requests that run into the layers' slots."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from octavo.device.lora.attach import AdaptedLayer
from octavo.device.lora.load import LoadedAdapter
from octavo.device.lora.store import AdapterStore
from octavo.words.errors import CheckpointError, RequestError, UnsupportedError
from octavo.words.lora import Adapter
from octavo.words.messages import NewRequestData

NO_ADAPTER = -1


class SlotAdapters:
    """``Adapters`` over layers with ``num_slots`` slots each.

    An adapter stays in its slot when its last request has gone, until another needs the place: then the least recently
    used one goes. The scheduler lets no more different adapters run than there are slots. ``row_slots``: [most rows of
    a step] int32, read by the layers.
    """

    def __init__(
        self,
        layers: Sequence[AdaptedLayer],
        store: AdapterStore,
        row_slots: Tensor,
        *,
        num_slots: int,
        max_num_requests: int,
    ) -> None:
        self._layers = layers
        self._store = store
        self._row_slots: npt.NDArray[np.int32] = row_slots.numpy()
        self._slots = _LruSlots(num_slots)
        self._slot_of_request = np.full(max_num_requests, NO_ADAPTER, dtype=np.int32)
        self._hash_of_request: dict[int, str] = {}
        self._in_slots: dict[int, LoadedAdapter] = {}
        self._failed: dict[str, str] = {}
        self._num_rows = self._num_rows_of_step = 0

    def add(self, slot: int, request: NewRequestData) -> None:
        self._slot_of_request[slot] = NO_ADAPTER
        if request.adapter is None:
            return
        try:
            self._slot_of_request[slot] = self._enter(request.adapter)
        except RequestError as error:
            self._failed[request.request_id] = str(error)
            return
        self._hash_of_request[slot] = request.adapter.content_hash

    def remove(self, slot: int) -> None:
        self._slot_of_request[slot] = NO_ADAPTER
        content_hash = self._hash_of_request.pop(slot, None)
        if content_hash is not None:
            self._slots.release(content_hash)

    def begin_step(self, slots: npt.NDArray[np.int64], query_start_loc: npt.NDArray[np.int32]) -> None:
        rows = self._slot_of_request[slots].repeat(np.diff(query_start_loc))
        self._row_slots[: len(rows)] = rows
        self._num_rows_of_step = int((rows != NO_ADAPTER).sum())
        self._num_rows += self._num_rows_of_step

    def note_repeats(self, num_times: int) -> None:
        self._num_rows += num_times * self._num_rows_of_step

    def take_failed(self) -> dict[str, str]:
        failed, self._failed = self._failed, {}
        return failed

    def load(self, adapter: Adapter) -> None:
        self._in_memory(adapter)

    def counters(self) -> dict[str, int]:
        """Rows computed with adapters; adapters read from files, put into slots, and dropped; their bytes."""
        in_memory = {id(each): each for each in (*self._store.in_memory(), *self._in_slots.values())}
        return {
            "rows": self._num_rows,
            "loads": self._store.num_loads,
            "memory_evictions": self._store.num_evictions,
            "slot_entries": self._slots.num_entries,
            "slot_evictions": self._slots.num_evictions,
            "bytes": sum(each.nbytes for each in in_memory.values()),
        }

    def _enter(self, adapter: Adapter) -> int:
        slot = self._slots.find(adapter.content_hash)
        if slot is None:
            loaded = self._in_memory(adapter)
            slot = self._slots.take(adapter.content_hash)
            self._in_slots[slot] = loaded
            for layer, updates in zip(self._layers, loaded.updates, strict=True):
                layer.slots.put(slot, updates)
        self._slots.hold(adapter.content_hash)
        return slot

    def _in_memory(self, adapter: Adapter) -> LoadedAdapter:
        try:
            return self._store.get(adapter)
        except (CheckpointError, UnsupportedError) as error:  # its files went or broke since the request was checked
            raise RequestError(f"adapter {adapter.name!r}: {error}", param="lora_request") from error


class _LruSlots:
    """Which adapter is in which slot, the least recently used first, and how many requests hold it there."""

    def __init__(self, num_slots: int) -> None:
        self._free = list(range(num_slots))[::-1]
        self._slots: OrderedDict[str, int] = OrderedDict()
        self._num_holders: dict[str, int] = {}
        self.num_entries = 0
        self.num_evictions = 0

    def find(self, content_hash: str) -> int | None:
        return self._slots.get(content_hash)

    def take(self, content_hash: str) -> int:
        """A slot for one that has none."""
        if not self._free:
            idle = next((each for each in self._slots if each not in self._num_holders), None)
            assert idle is not None, "more adapters run than there are slots"
            self._free.append(self._slots.pop(idle))
            self.num_evictions += 1
        self.num_entries += 1
        slot = self._slots[content_hash] = self._free.pop()
        return slot

    def hold(self, content_hash: str) -> None:
        self._slots.move_to_end(content_hash)
        self._num_holders[content_hash] = self._num_holders.get(content_hash, 0) + 1

    def release(self, content_hash: str) -> None:
        self._num_holders[content_hash] -= 1
        if not self._num_holders[content_hash]:
            del self._num_holders[content_hash]
