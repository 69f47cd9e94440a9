"""A model's linear layers and attention alone, each held against the ceilings of the machine in the same run.

Each runs as in a captured step, weights and keys cold. The ceiling of a call is the longer of two times: its operations
at the peak of the multiply unit, and its bytes at read bandwidth.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from octavo.bench.measured import ARENA_BYTES, multiplied_dtype
from octavo.bench.roofline import MachineProbe
from octavo.config.flat import EngineArgs
from octavo.words.errors import ConfigError

if TYPE_CHECKING:
    from octavo.frontend.llm import LLM

EXTENSION = "octavo.device.worker.kernel_probe:KernelProbe"
ROWS = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 32, 64, 128, 512)
CONTEXTS = (128, 512, 2048, 8192)
QUICK_ROWS, QUICK_CONTEXTS = (1, 2, 4, 5, 8, 16, 17, 64), (128, 1024)
ATTENTION_SHAPES = ((1, 1), (1, 8), (128, 1))
"""(new rows, requests): one decode, eight, and a chunk of a prompt."""

CLIFF = 1.10
"""A number of rows may cost this much more than a neighbour promises."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=_numbers, metavar="M,M,...", help=f"row counts (default: {_text(ROWS)})")
    parser.add_argument("--contexts", type=_numbers, metavar="L,L,...", help=f"contexts (default: {_text(CONTEXTS)})")
    parser.add_argument("--only", metavar="TEXT", help="only kinds of layer whose name has this in it")
    parser.add_argument("--repeats", type=int, default=7, metavar="N", help="times each is measured (default: 7)")
    parser.add_argument(
        "--quick", action="store_true", help=f"rows {_text(QUICK_ROWS)}, contexts {_text(QUICK_CONTEXTS)}"
    )


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Rows of two tables, ``linear`` and ``attention``, and the check of neighbours.

    ``cliffs`` are, by weights' format, row counts slower per token than neighbours.
    """
    from octavo.frontend.llm import LLM

    if args.repeats < 1:
        raise ConfigError(f"--repeats must be at least 1, got {args.repeats}.")
    args.worker_extension_cls = EXTENSION
    rows = args.rows or (QUICK_ROWS if args.quick else ROWS)
    contexts = args.contexts or (QUICK_CONTEXTS if args.quick else CONTEXTS)
    with LLM.from_engine_args(EngineArgs.from_cli_args(args)) as llm:
        plan = llm.info.plan
        if plan.kernels != "native":
            raise ConfigError("octavo bench kernels measures native kernels, and this engine has none.")
        machine = MachineProbe(plan.num_threads, plan.cpu_isa, ARENA_BYTES)
        before = machine.ceilings()
        bench = KernelBench(llm, args.repeats, args.only or "")
        linear = list(bench.linears(rows))
        attention = list(bench.attentions(contexts))
        after = machine.ceilings()
    ceilings = before.best_with(after)
    _, peak = ceilings.unit(multiplied_dtype(plan))
    for case in linear + attention:
        case["share"] = max(1e9 * case["gops"] / peak, case["gbps"] / ceilings.read_gbps)
    return {
        "isa": machine.isa,
        "dtype": plan.dtype,
        "ceilings": dataclasses.asdict(ceilings),
        "ceilings_changed": before.changed_to(after),
        "linear": linear,
        "attention": attention,
        "cliffs": cliffs(linear),
        "worst_neighbour": worst_neighbour(linear),
    }


class KernelBench:
    """Asks the worker for seconds, and says what was done in them."""

    def __init__(self, llm: LLM, repeats: int, only: str) -> None:
        self._llm = llm
        self._repeats = repeats
        self._only = only

    def linears(self, rows: Sequence[int]) -> Iterator[dict[str, Any]]:
        for layer in self._ask("linears"):
            if self._only in layer["name"]:
                times = self._ask("time_linear", layer["name"], layer["format"], rows, self._repeats)
                for num_rows, seconds in zip(rows, times, strict=True):
                    operations = 2 * num_rows * layer["k"] * layer["n"]
                    case = {**layer, "rows": num_rows, "us_per_row": 1e6 * statistics.median(seconds) / num_rows}
                    yield case | self._figures(seconds, operations, layer["bytes"])

    def attentions(self, contexts: Sequence[int]) -> Iterator[dict[str, Any]]:
        for layer in self._ask("attentions"):
            if self._only in layer["name"]:
                for context in contexts:
                    for num_rows, num_requests in ATTENTION_SHAPES:
                        yield self._attention(layer, context, min(num_rows, context), num_requests)

    def _attention(self, layer: dict[str, Any], context: int, num_rows: int, num_requests: int) -> dict[str, Any]:
        seconds = self._ask("time_attention", layer["name"], context, num_rows, num_requests, self._repeats)
        seen = [min(context - row, layer["window"] or context) for row in range(num_rows)]
        operations = 4 * layer["num_heads"] * layer["head_size"] * num_requests * sum(seen)
        keys = min(context, (layer["window"] or context) - 1 + num_rows)
        case = {**layer, "context": context, "rows": num_rows, "requests": num_requests}
        return case | self._figures(seconds, operations, keys * num_requests * layer["bytes_per_token"])

    def _figures(self, seconds: Sequence[float], operations: float, num_bytes: float) -> dict[str, Any]:
        median = statistics.median(seconds)
        return {
            "us": 1e6 * median,
            "best_us": 1e6 * min(seconds),
            "gbps": num_bytes / median / 1e9,
            "gops": operations / median / 1e9,
        }

    def _ask(self, name: str, *args: Any) -> Any:
        return self._llm.collective_rpc(f"extension.{name}", *args)[0]


def cliffs(cases: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """By format, row counts of a layer that cost more per row than the next lower, or in all than the next higher."""
    return {
        format: [text for ratio, text in _neighbours(of_format) if ratio > CLIFF]
        for format, of_format in _grouped(cases, "format").items()
    }


def worst_neighbour(cases: Sequence[dict[str, Any]]) -> str:
    """The row count nearest to a cliff, or farthest over one; empty where no layer has two row counts."""
    return max(_neighbours(cases), default=(0.0, ""))[1]


def _neighbours(cases: Sequence[dict[str, Any]]) -> Iterator[tuple[float, str]]:
    """How much more than its neighbour promises each row count costs, and that in words."""
    for (name, _), of_layer in _grouped(cases, "name", "format").items():
        for fewer, more in pairwise(sorted(of_layer, key=lambda case: case["rows"])):
            per_row, in_all = more["us_per_row"] / fewer["us_per_row"], fewer["us"] / more["us"]
            yield per_row, f"{name}: {more['rows']} rows take {per_row:.2f} x the time per row of {fewer['rows']}"
            yield in_all, f"{name}: {fewer['rows']} rows take {in_all:.2f} x the time in all of {more['rows']}"


def _grouped(cases: Sequence[dict[str, Any]], *names: str) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    for case in cases:
        groups.setdefault(itemgetter(*names)(case), []).append(case)
    return groups


def print_result(result: dict[str, Any]) -> None:
    """The tables, a line per case, and the check of neighbours."""
    ceilings = ", ".join(f"{name} {rate:.1f}" for name, rate in result["ceilings"].items() if rate is not None)
    print(f"{result['isa']}, {result['dtype']}; {ceilings} (changed by {result['ceilings_changed']:.1%})")
    print(f"\n{'linear':<18}{'format':<12}{'k':>7}{'n':>8}{'rows':>6}{'us':>11}{'GB/s':>8}{'GOP/s':>9}{'share':>8}")
    for case in result["linear"]:
        shape = f"{case['name']:<18}{case['format']:<12}{case['k']:>7}{case['n']:>8}{case['rows']:>6}"
        print(f"{shape}{case['us']:>11.1f}{case['gbps']:>8.2f}{case['gops']:>9.1f}{case['share']:>8.1%}")
    print(f"\n{'attention':<24}{'context':>8}{'rows':>6}{'requests':>9}{'us':>11}{'GB/s':>8}{'GOP/s':>9}{'share':>8}")
    for case in result["attention"]:
        shape = f"{case['name']:<24}{case['context']:>8}{case['rows']:>6}{case['requests']:>9}"
        print(f"{shape}{case['us']:>11.1f}{case['gbps']:>8.2f}{case['gops']:>9.1f}{case['share']:>8.1%}")
    if result["worst_neighbour"]:
        print(f"\nthe slowest beside a neighbour: {result['worst_neighbour']}")
    print(f"no row count more than {CLIFF - 1:.0%} slower per token than its neighbours (medians):")
    for format, slower in result["cliffs"].items():
        print(f"  {format:<12}{'; '.join(slower) or 'ok'}")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of numbers from 1 on, such as 1,8,64")
    return numbers


def _text(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
