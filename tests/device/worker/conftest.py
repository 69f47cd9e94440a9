from __future__ import annotations

from collections.abc import Iterator

import pytest

from octavo.device.worker.threads import TorchThreads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On tensors this small, threads only wait for each other."""
    with TorchThreads(1):
        yield
