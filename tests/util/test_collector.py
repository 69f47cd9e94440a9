from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from octavo.util.collector import paused_collector


class Node:
    """Refers to itself, so that only the collector can free it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def collector_on() -> Iterator[None]:
    gc.enable()
    yield
    gc.unfreeze()
    gc.enable()


def test_nothing_is_collected_inside_and_all_afterwards() -> None:
    with paused_collector():
        assert not gc.isenabled()
        garbage = weakref.ref(Node())
        kept = [[] for _ in range(10 * gc.get_threshold()[0])]
        assert garbage() is not None
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    gc.collect()
    assert garbage() is None and kept


def test_a_start_that_fails_gives_the_collector_back() -> None:
    with pytest.raises(OSError), paused_collector():
        raise OSError
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    with paused_collector():
        pass
    assert not gc.isenabled()


def test_the_inner_of_two_pauses_does_not_end_the_outer() -> None:
    with paused_collector():
        with paused_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_what_a_start_leaves_is_old() -> None:
    with paused_collector():
        node = Node()
    assert any(each is node for each in gc.get_objects(generation=2))


def test_what_somebody_froze_stays_frozen() -> None:
    node = Node()
    gc.freeze()
    with paused_collector():
        pass
    assert not any(each is node for each in gc.get_objects())
