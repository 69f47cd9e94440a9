"""Texts embedded per second, beside sentence-transformers on the same weights (float32, the same threads).

    python benchmarks/embeddings.py --peer-python PATH [--model all-minilm-l6-v2] [--texts 512] [--pairs 3]

``--peer-python`` is a Python that has sentence-transformers. Both stay loaded and take turns (A B A B), each with the
same texts of mixed lengths in one call. Prints a JSON object: texts per second of each turn, the medians, and their
ratio. Bars: a ratio of 1.5, and a cosine of 0.9999 between the vectors of any text. ``met`` says of each whether these
figures meet it; the exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

Vectors = list[list[float]]
Embed = Callable[[list[str]], Vectors]

WORDS = (
    "the",
    "a",
    "cat",
    "dog",
    "sits",
    "runs",
    "over",
    "under",
    "quick",
    "river",
    "stone",
    "market",
    "price",
    "of",
    "in",
)


def texts(count: int) -> list[str]:
    """Most are a sentence, some a paragraph: 4 to 150 words, the median 16."""
    draw = random.Random(7)
    lengths = [min(150, max(4, round(draw.lognormvariate(2.8, 0.8)))) for _ in range(count)]
    return [" ".join(draw.choices(WORDS, k=length)) for length in lengths]


def octavo(model: str, threads: int) -> Embed:
    """The engine, in this process."""
    from octavo import LLM

    llm = LLM(model, dtype="float32", num_threads=threads)
    return lambda batch: [output.outputs.data for output in llm.embed(batch, use_tqdm=False)]


def sentence_transformers(model: str, threads: int) -> Embed:
    """The peer, as its users call it."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    encoder = SentenceTransformer(model, device="cpu")
    return lambda batch: encoder.encode(batch, show_progress_bar=False).tolist()


ENGINES: dict[str, Callable[[str, int], Embed]] = {"octavo": octavo, "sentence-transformers": sentence_transformers}


def serve(engine: str, model: str, threads: int) -> None:
    """In a process of its own: a line of texts comes, a line of seconds and vectors goes."""
    embed = ENGINES[engine](model, threads)
    for line in sys.stdin:
        batch = json.loads(line)
        began = time.perf_counter()
        vectors = embed(batch)
        answer = {"seconds": time.perf_counter() - began, "vectors": vectors}
        print(json.dumps(answer), flush=True)


class Turns:
    """An engine that waits for its turn."""

    def __init__(self, python: str, engine: str, model: str, threads: int) -> None:
        command = [python, __file__, "--serve", engine, "--model", model, "--threads", str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def embed(self, batch: list[str]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(batch), file=self._process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.communicate(timeout=60)


def compare(arguments: argparse.Namespace) -> dict[str, Any]:
    """Texts per second of each turn, and how near the vectors are."""
    from octavo.checkpoint.resolve import resolve_model

    folder = str(resolve_model(arguments.model).path)
    pythons = {"octavo": sys.executable, "sentence-transformers": arguments.peer_python}
    engines = {name: Turns(python, name, folder, arguments.threads) for name, python in pythons.items()}
    batch = texts(arguments.texts)
    first = {name: engine.embed(batch)["vectors"] for name, engine in engines.items()}  # the warm-up
    worst = min(cosine(one, other) for one, other in zip(*first.values(), strict=True))
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(arguments.pairs):
        for name, engine in engines.items():
            rates[name].append(len(batch) / engine.embed(batch)["seconds"])
    for engine in engines.values():
        engine.close()
    medians = {name: statistics.median(found) for name, found in rates.items()}
    ratio = medians["octavo"] / medians["sentence-transformers"]
    met = {"ratio >= 1.5": ratio >= 1.5, "least_cosine > 0.9999": worst > 0.9999}
    return {"texts_per_s": rates, "median": medians, "ratio": ratio, "least_cosine": worst, "met": met}


def cosine(one: list[float], other: list[float]) -> float:
    products = sum(a * b for a, b in zip(one, other, strict=True))
    return float(products / (sum(a * a for a in one) * sum(b * b for b in other)) ** 0.5)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="all-minilm-l6-v2")
    parser.add_argument("--peer-python")
    parser.add_argument("--texts", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", choices=ENGINES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(arguments.serve, arguments.model, arguments.threads)
    elif arguments.peer_python is None:
        parser.error("--peer-python is needed: a Python that has sentence-transformers")
    else:
        report = compare(arguments)
        print(json.dumps(report, indent=2))
        return 0 if all(report["met"].values()) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
