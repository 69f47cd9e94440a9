"""What every engine is given: requests of random token ids, answered greedily and to their full length."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Workload:
    """``num_requests`` at once, of ``prefix_len`` tokens they share and ``input_len`` of their own.

    ``metric`` says what is told of it: output, input or total tokens per second, or seconds.
    """

    name: str
    title: str
    num_requests: int
    input_len: int
    output_len: int
    prefix_len: int = 0
    metric: str = "output tok/s"

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """The same for every engine, and no two workloads share a token's place."""
        rng = random.Random(self.name)
        prefix = [rng.randrange(vocab_size) for _ in range(self.prefix_len)]
        own = [[rng.randrange(vocab_size) for _ in range(self.input_len)] for _ in range(self.num_requests)]
        return [prefix + tokens for tokens in own]

    def value(self, seconds: float) -> float:
        """The metric of a run that took ``seconds``."""
        num_input, num_output = self.prefix_len + self.input_len, self.output_len
        tokens = {
            "output tok/s": num_output,
            "input tok/s": num_input,
            "total tok/s": num_input + num_output,
        }
        return seconds if self.metric == "s" else self.num_requests * tokens[self.metric] / seconds

    @property
    def lower_is_better(self) -> bool:
        return self.metric == "s"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


STARTUP = Workload("startup", "start to first token", 1, 8, 1, metric="s")
"""Timed from the start of the process; every run has it."""

WORKLOADS = {
    workload.name: workload
    for workload in (
        STARTUP,
        Workload("single", "1 stream, 128+128", 1, 128, 128),
        Workload("prompt", "one prompt of 1,024", 1, 1024, 1, metric="input tok/s"),
        Workload("batch8", "8 x 128+128", 8, 128, 128),
        Workload("batch64", "64 x 128+128", 64, 128, 128),
        Workload("prompts16", "16 x 1,024+8", 16, 1024, 8, metric="total tok/s"),
        Workload("shared32", "32 x (1,024 shared + 32) + 32", 32, 32, 32, prefix_len=1024, metric="s"),
        Workload("prompt512", "one prompt of 512", 1, 512, 1, metric="input tok/s"),
        Workload("context8k", "one prompt of 8,192 + 32", 1, 8192, 32, metric="s"),
        Workload("context32k", "one prompt of 32,768 + 32", 1, 32_768, 32, metric="s"),
        Workload("tiny", "2 x 16+4, to try things out", 2, 16, 4),
    )
}
DEFAULT = ("startup", "single", "prompt", "batch8", "batch64", "prompts16", "shared32")
