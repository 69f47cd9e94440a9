"""Torch's number of compute threads, borrowed: the engine may live in a process whose settings are not ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(num_threads: int) -> Iterator[None]:
    """Compute with ``num_threads`` inside, and with what was set before afterwards. Costs nothing where they agree."""
    before = torch.get_num_threads()
    if before == num_threads:
        yield
        return
    torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)
