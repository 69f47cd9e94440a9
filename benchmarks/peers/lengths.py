"""Requests whose lengths are spread as those of ShareGPT: most are short, some are long; and texts of such lengths."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.bench.serving.datasets import DatasetOptions, load_prompts
from octavo.checkpoint.resolve import resolve_model
from octavo.frontend.load_tokenizer import load_tokenizer

NUMBER = 256


@dataclass(frozen=True)
class Lognormal:
    """Whole numbers between bounds; half of them are below the median, and sigma is the spread of their logarithms."""

    median: float
    sigma: float
    lowest: int
    highest: int

    def draw(self, rng: random.Random) -> int:
        return min(max(round(self.median * rng.lognormvariate(0.0, self.sigma)), self.lowest), self.highest)


INPUT, OUTPUT = Lognormal(90, 1.1, 4, 1024), Lognormal(110, 0.8, 4, 384)
"""Tokens. ShareGPT's own have this shape; answers are half as long here, so that a run is minutes."""


def sharegpt_like(seed: int) -> list[tuple[int, int]]:
    """(input, output) lengths of requests, the same for the same seed."""
    rng = random.Random(seed)
    return [(INPUT.draw(rng), OUTPUT.draw(rng)) for _ in range(NUMBER)]


def write_requests(lengths: Sequence[tuple[int, int]], model: str, path: Path) -> None:
    """A data set for `octavo bench serve --dataset-name custom`: random words, which share nothing."""
    tokenizer = load_tokenizer(resolve_model(model))
    with path.open("w", encoding="utf-8") as file:
        for seed, (num_input, num_output) in enumerate(lengths):
            options = DatasetOptions(num_prompts=1, seed=seed, random_input_len=num_input)
            (prompt,) = load_prompts(options, tokenizer)
            file.write(json.dumps({"prompt": prompt.content, "output_tokens": num_output}) + "\n")
