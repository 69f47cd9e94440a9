"""The progress bar of a checkpoint in several files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ShardProgress:
    """Counts files whose tensors are all copied on ``bar`` (a tqdm, or None to stay silent).

    ``files``: that of each tensor which will be.
    """

    def __init__(self, files: Iterable[Path], bar: Any = None) -> None:
        self._tensors_left = Counter(files)
        self._bar = bar

    def add(self, files: Iterable[Path]) -> None:
        """A tensor of each of these was copied."""
        for file in files:
            self._tensors_left[file] -= 1
            if not self._tensors_left[file] and self._bar is not None:
                self._bar.update()


@contextmanager
def shard_progress(files: Sequence[Path]) -> Iterator[ShardProgress]:
    """A bar on stderr over these files, one for each tensor to be read; a silent one if they are the same file."""
    num_files = len(set(files))
    if num_files < 2:
        yield ShardProgress(files)
        return
    from tqdm import tqdm  # only those who want a bar wait for its import

    with tqdm(total=num_files, desc="Loading safetensors checkpoint shards", dynamic_ncols=True) as bar:
        yield ShardProgress(files, bar)
