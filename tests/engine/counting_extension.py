"""A worker extension, as a user would write one."""

from __future__ import annotations

from octavo.device.worker.worker import Worker


class CountingExtension:
    """Answers questions about the worker's model."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def count_parameters(self, name: str) -> int:
        """Numbers in the parameters with that in their name."""
        return sum(each.numel() for key, each in self._worker.model.named_parameters() if name in key)
