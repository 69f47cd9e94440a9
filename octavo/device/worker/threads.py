"""Torch's number of compute threads, borrowed: the engine may live in a process whose settings are not ours."""

from __future__ import annotations

import torch


class TorchThreads:
    """``with`` it, torch computes with ``num_threads``, and with what was set before afterwards. May be used again.

    A class, and no setting where the numbers agree, for a step enters it twice.
    """

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._before = num_threads

    def __enter__(self) -> None:
        self._before = torch.get_num_threads()
        if self._before != self._num_threads:
            torch.set_num_threads(self._num_threads)

    def __exit__(self, *_: object) -> None:
        if self._before != self._num_threads:
            torch.set_num_threads(self._before)
