"""The progress bar of a batch: requests done, and tokens per second in and out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from octavo.words.outputs import PoolingRequestOutput, RequestOutput


class Progress:
    """Counts finished requests on ``bar`` (a tqdm, or None to stay silent)."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar
        self._began = time.monotonic()
        self._num_input = 0
        self._num_output = 0

    def add(self, output: RequestOutput | PoolingRequestOutput) -> None:
        """One request is done."""
        if self._bar is None:
            return
        self._num_input += len(output.prompt_token_ids)
        if isinstance(output, RequestOutput):
            self._num_output += sum(len(choice.token_ids) for choice in output.outputs)
        spent = max(time.monotonic() - self._began, 1e-9)
        self._bar.set_postfix_str(
            f"input: {self._num_input / spent:.1f} toks/s, output: {self._num_output / spent:.1f} toks/s",
            refresh=False,
        )
        self._bar.update()


@contextmanager
def progress_bar(total: int, *, enabled: bool) -> Iterator[Progress]:
    """A bar on stderr for ``total`` requests, or a silent one."""
    if not enabled:
        yield Progress()
        return
    from tqdm import tqdm  # only those who want a bar wait for its import

    with tqdm(total=total, desc="Processed prompts", dynamic_ncols=True) as bar:
        yield Progress(bar)
