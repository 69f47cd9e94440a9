"""Adapters in memory: as many as fit, the least recently used ones go first and are read again when needed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from octavo.device.lora.load import LoadedAdapter
from octavo.words.lora import Adapter


class AdapterStore:
    """Keeps at most ``max_adapters`` of what ``load`` gave, by content. Safe in any thread."""

    def __init__(self, load: Callable[[Adapter], LoadedAdapter], max_adapters: int) -> None:
        self._load = load
        self._max_adapters = max_adapters
        self._loaded: OrderedDict[str, LoadedAdapter] = OrderedDict()
        self._lock = threading.Lock()
        self.num_loads = 0
        self.num_evictions = 0

    def get(self, adapter: Adapter) -> LoadedAdapter:
        """The adapter, read from its files if it is not in memory. Raises as ``load`` does."""
        with self._lock:
            if adapter.content_hash in self._loaded:
                self._loaded.move_to_end(adapter.content_hash)
                return self._loaded[adapter.content_hash]
        loaded = self._load(adapter)  # for long: who finds his in memory need not wait
        with self._lock:
            self.num_loads += 1
            self._loaded[adapter.content_hash] = loaded
            self._loaded.move_to_end(adapter.content_hash)
            while len(self._loaded) > self._max_adapters:
                self._loaded.popitem(last=False)
                self.num_evictions += 1
        return loaded

    def in_memory(self) -> list[LoadedAdapter]:
        """Those that are kept at present."""
        with self._lock:
            return list(self._loaded.values())
