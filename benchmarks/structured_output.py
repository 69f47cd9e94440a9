"""What constraints cost: time of a mask, delay of the first token, and throughput of constrained streams.

    python benchmarks/structured_output.py [--model smollm2-135m] [--schemas FILE] [--streams 32] [--pairs 3]

Masks are timed along instances of JSON schemas: those of FILE (a JSON object a line, with `schema` and `tests`), or
three of its own; at every 32nd token the soonest end is looked for, as is done some 40 times where an answer
comes near `max_tokens`. The delay is that of a request whose grammar is cached beside one without a constraint; the
throughput is tokens per second of streams that write a long array of objects, beside the same streams
unconstrained; both in turns (A B A B), medians. Bars: the 99th percentile of a mask 1 ms, the delay 5 ms, 0.85 of the
throughput. ``met`` says of each whether these figures meet it; the exit status is 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from octavo import LLM, SamplingParams, StructuredOutputParams
from octavo.control.structured_output.backends.llguidance import LLGuidanceBackend, LLGuidanceGrammar
from octavo.control.structured_output.closing import LONGEST_END
from octavo.words.errors import RequestError

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 4},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}
PEOPLE = {"type": "array", "items": PERSON, "minItems": 200}
"""Longer than any stream gets: no answer ends early."""

ANN = {"name": "Ann Example", "age": 44, "tags": ["red", "blue"]}
OWN = [(PERSON, [ANN]), (PEOPLE, [[ANN] * 200]), ({"type": "object"}, [{"a": [1, 2.5, {"b": "text " * 20}]}])]
Instances = Iterator[tuple[Any, list[Any]]]


def schemas(path: Path | None) -> Instances:
    """Schemas, each with valid instances."""
    if path is None:
        yield from OWN
        return
    for line in map(json.loads, path.read_text().splitlines()):
        yield line["schema"], [test["data"] for test in line["tests"] if test["valid"]]


def walked(llm: LLM, given: Instances) -> Iterator[tuple[LLGuidanceGrammar, int]]:
    """The grammar of each schema before every token of its instances, and the token's number."""
    tokenizer = llm.get_tokenizer()
    backend = LLGuidanceBackend(tokenizer, [tokenizer.eos_token_id])
    for schema, instances in given:
        try:
            made = backend.compile(StructuredOutputParams(json=json.dumps(schema)))
        except RequestError:
            continue
        for instance in instances:
            grammar = made.copy()
            for number, token_id in enumerate(tokenizer.encode(json.dumps(instance), add_special_tokens=False)):
                yield grammar, number
                if not grammar.accept([token_id]):
                    break


def mask_times(llm: LLM, given: Instances) -> list[float]:
    """Seconds of every mask along the instances."""
    row = np.zeros((1, (llm.get_tokenizer().num_text_tokens + 31) // 32), dtype=np.int32)
    return [_timed(partial(grammar.fill, row, [])) for grammar, _ in walked(llm, given)]


def end_times(llm: LLM, given: Instances) -> list[float]:
    """Seconds of finding the soonest end, at every 32nd token of the instances."""
    return [
        _timed(partial(grammar.way_to_end, [], LONGEST_END))
        for grammar, number in walked(llm, given)
        if number % 32 == 16
    ]


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def generate(llm: LLM, num_streams: int, max_tokens: int, shape: StructuredOutputParams | None) -> float:
    """Seconds until all streams have their tokens."""
    params = SamplingParams(
        temperature=1.0, seed=1, max_tokens=max_tokens, ignore_eos=True, structured_outputs=shape, detokenize=False
    )
    prompts = [f"Write a JSON array of people, number {number}:" for number in range(num_streams)]
    return _timed(lambda: llm.generate(prompts, params, use_tqdm=False))


def in_turns(
    llm: LLM, num_streams: int, max_tokens: int, pairs: int, closing_tokens: int | None
) -> tuple[float, float]:
    """Median seconds without a constraint and with one."""
    shape = StructuredOutputParams(json=json.dumps(PEOPLE), closing_tokens=closing_tokens)
    found: dict[bool, list[float]] = {False: [], True: []}
    for number in range(pairs + 1):
        for constrained, seconds in found.items():
            took = generate(llm, num_streams, max_tokens, shape if constrained else None)
            if number:  # the first pair warms up
                seconds.append(took)
    return statistics.median(found[False]), statistics.median(found[True])


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    with LLM(arguments.model, max_num_seqs=arguments.streams, enable_prefix_caching=False) as llm:
        masks, ends = (times(llm, schemas(arguments.schemas)) for times in (mask_times, end_times))
        free, held = in_turns(llm, 1, 1, 10 * arguments.pairs, arguments.closing_tokens)
        plain, constrained = in_turns(
            llm, arguments.streams, arguments.tokens, arguments.pairs, arguments.closing_tokens
        )
    report = {
        "masks": len(masks),
        "mask_ms": _quantiles(masks),
        "end_ms": _quantiles(ends),
        "first_token_delay_ms": (held - free) * 1e3,
        "plain_tok_s": arguments.streams * arguments.tokens / plain,
        "constrained_tok_s": arguments.streams * arguments.tokens / constrained,
        "throughput_ratio": plain / constrained,
    }
    return report | {"met": bars_met(report)}


def bars_met(report: dict[str, Any]) -> dict[str, bool]:
    """The bars, and whether the figures meet them."""
    return {
        "p99 of mask_ms < 1": report["mask_ms"]["p99"] < 1,
        "first_token_delay_ms < 5": report["first_token_delay_ms"] < 5,
        "throughput_ratio >= 0.85": report["throughput_ratio"] >= 0.85,
    }


def _quantiles(seconds: list[float]) -> dict[str, float]:
    at = statistics.quantiles(seconds, n=1000)
    return {"p50": at[499] * 1e3, "p99": at[989] * 1e3, "max": max(seconds) * 1e3}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--schemas", type=Path)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument(
        "--closing-tokens", type=int, help="0: the array is cut off; default: all of it is being closed"
    )
    report = measure(parser.parse_args())
    print(json.dumps(report, indent=2))
    return 0 if all(report["met"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
