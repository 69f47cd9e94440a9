from __future__ import annotations

import pytest

from octavo.device.lora.load import LoadedAdapter
from octavo.device.lora.store import AdapterStore
from octavo.words.errors import CheckpointError
from octavo.words.lora import Adapter


def adapter(name: str) -> Adapter:
    return Adapter(name, f"/{name}", name)


def test_the_least_recently_used_is_read_again() -> None:
    read: list[str] = []

    def load(one: Adapter) -> LoadedAdapter:
        read.append(one.name)
        return LoadedAdapter([])

    store = AdapterStore(load, 2)
    for name in ("a", "b", "a", "c", "a", "b"):
        store.get(adapter(name))
    assert read == ["a", "b", "c", "b"]
    assert (store.num_loads, store.num_evictions) == (4, 2)


def test_one_that_cannot_be_read_is_tried_again() -> None:
    tries = 0

    def load(one: Adapter) -> LoadedAdapter:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise CheckpointError(one.path, "is broken")
        return LoadedAdapter([])

    store = AdapterStore(load, 1)
    with pytest.raises(CheckpointError):
        store.get(adapter("a"))
    store.get(adapter("a"))
    assert (store.num_loads, tries) == (1, 2)
