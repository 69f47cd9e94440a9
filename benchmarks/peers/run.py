"""Octavo beside its peers, on this machine: one engine alive at a time, in turn (A B C, A B C, ..., A).

    python benchmarks/peers/run.py --model smollm2-135m
    python benchmarks/peers/run.py --peers llama.cpp --precisions file --workloads single,prompt --rounds 2 --minutes 30

Sets up each peer's environment and its form of the model on first use (--setup-only: and no more); a peer that
cannot be had is left out with its reason. Writes peers.json after every run, and at the end peers.md and peers.png.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments import Environments, SetupFailed, variables
from models import Models
from report import OURS, draw, markdown
from workloads import DEFAULT, WORKLOADS

from octavo.bench.roofline import MachineProbe
from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.device.platform.detect import detect_caps

HERE = Path(__file__).resolve().parent
PEERS = ("llama.cpp", "openvino", "vllm", "transformers")
ARENA_BYTES = 512 << 20
HALF = "bfloat16"
PRECISIONS = ("16 bits", "8 bits", "the file")


@dataclass(frozen=True)
class Contestant:
    """An engine at one precision, ready to be run: its script, interpreter, form of the model and options."""

    engine: str
    precision: str
    python: Path
    model: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def script(self) -> Path:
        return HERE / f"engine_{self.engine.replace('.', '_')}.py"


@dataclass(frozen=True)
class Workshop:
    """What contestants are made from."""

    environments: Environments
    models: Models
    has_bfloat16_unit: bool
    kv_cache: str = "auto"

    def contestant(self, engine: str, precision: str) -> Contestant | None:
        """None where an engine does not have that precision. Raises SetupFailed."""
        make: Callable[[str], Contestant | None] = getattr(self, "_" + engine.replace(".", "_"))
        return make(precision)

    def _octavo(self, precision: str) -> Contestant:
        weights = {"16 bits": {"quantization": "none", "dtype": HALF}, "8 bits": {"quantization": "int8"}}
        options = {**weights.get(precision, {}), "kv_cache_dtype": self.kv_cache}
        return Contestant(OURS, precision, Path(sys.executable), str(self.models.gguf), options)

    def _llama_cpp(self, precision: str) -> Contestant:
        kinds = {"16 bits": "BF16", "8 bits": "Q8_0"}
        model = self.models.requantized(kinds[precision]) if precision in kinds else self.models.gguf
        options = {"bin": str(self.environments.llama_cpp()), "kv_cache": self.kv_cache}
        return Contestant("llama.cpp", precision, Path(sys.executable), str(model), options)

    def _openvino(self, precision: str) -> Contestant | None:
        formats = {"16 bits": "fp16", "8 bits": "int8"}
        if precision not in formats:
            return None
        python = self.environments.python("openvino")
        return Contestant("openvino", precision, python, str(self.models.openvino(formats[precision])))

    def _vllm(self, precision: str) -> Contestant | None:
        if precision != "16 bits":
            return None
        python = self.environments.python("vllm")
        # Without the unit most of its time is in library calls, and compiling around them takes minutes.
        options = {"dtype": HALF, "enforce_eager": not self.has_bfloat16_unit}
        return Contestant("vllm", precision, python, str(self.models.safetensors()), options)

    def _transformers(self, precision: str) -> Contestant | None:
        if precision != "16 bits":
            return None
        python = self.environments.python("transformers")
        return Contestant("transformers", precision, python, str(self.models.safetensors()), {"dtype": HALF})


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    checkpoint = resolve_model(args.model)
    environments = Environments(args.work_dir / "environments", jobs=args.jobs)
    caps = detect_caps("cpu")
    models = Models(Path(checkpoint.path), args.work_dir / "models", environments)
    workshop = Workshop(environments, models, HALF in caps.fast_dtypes, args.kv_cache)
    failures: dict[str, str] = {}
    contestants = gather(workshop, args, failures)
    if args.setup_only:
        print(json.dumps({"ready": [[c.engine, c.precision] for c in contestants], "failed": failures}, indent=2))
        return 0
    num_threads = args.num_threads or caps.num_threads
    record = start_record(args, num_threads, failures)
    order = {
        "num_threads": num_threads,
        "vocab_size": read_model_facts(checkpoint).vocab_size - 1,
        "workloads": [WORKLOADS[name].as_dict() for name in args.workloads],
    }
    measure(contestants, order, args, record)
    finish(record, num_threads, args)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF model, by name or path")
    parser.add_argument("--peers", type=_list(PEERS), default=PEERS, metavar="NAME,...", help=", ".join(PEERS))
    parser.add_argument("--precisions", type=_list(PRECISIONS), default=PRECISIONS, metavar="NAME,...")
    parser.add_argument("--workloads", type=_list(tuple(WORKLOADS)), default=DEFAULT, metavar="NAME,...")
    parser.add_argument("--kv-cache", choices=("auto", "int8"), default="auto", help="of Octavo and llama.cpp (q8_0)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of all engines; Octavo has one more (default: 2)")
    parser.add_argument("--minutes", type=float, default=120, help="no engine is started after this (default: 120)")
    parser.add_argument("--run-minutes", type=float, default=15, help="most that one run of an engine takes")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="compilers at once while llama.cpp is built")
    parser.add_argument("--work-dir", type=Path, default=Path.home() / ".cache" / "octavo" / "peers")
    parser.add_argument("--output-dir", type=Path, default=Path("peers-results"))
    parser.add_argument("--setup-only", action="store_true", help="make environments and models, measure nothing")
    return parser.parse_args(argv)


def _list(known: tuple[str, ...]) -> Callable[[str], tuple[str, ...]]:
    def parse(text: str) -> tuple[str, ...]:
        names = tuple(part.strip() for part in text.split(",") if part.strip())
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
        return names

    return parse


def gather(workshop: Workshop, args: argparse.Namespace, failures: dict[str, str]) -> list[Contestant]:
    """Everyone that can be had, Octavo first at every precision; ``failures`` is told who cannot."""
    found = []
    for precision in args.precisions:
        for engine in (OURS, *args.peers):
            try:
                contestant = workshop.contestant(engine, precision)
            except (SetupFailed, OSError, subprocess.TimeoutExpired) as error:
                failures[f"{engine}, {precision}"] = str(error)
                continue
            if contestant is not None:
                found.append(contestant)
    return found


def start_record(args: argparse.Namespace, num_threads: int, failures: dict[str, str]) -> dict[str, Any]:
    ceilings, isa = _ceilings(num_threads)
    return {
        "model": args.model,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": {"cpu": detect_caps("cpu").name, "num_threads": num_threads, "isa": isa},
        "workloads": list(args.workloads),
        "rounds": args.rounds,
        "versions": {},
        "failures": failures,
        "ceilings_before": ceilings,
        "ceilings_after": None,
        "runs": [],
    }


def measure(
    contestants: Sequence[Contestant], order: dict[str, Any], args: argparse.Namespace, record: dict[str, Any]
) -> None:
    """All rounds of all precisions, one after the other, until the time is over."""
    deadline = time.monotonic() + 60 * args.minutes
    for precision in args.precisions:
        some = [contestant for contestant in contestants if contestant.precision == precision]
        turns = [contestant for _ in range(args.rounds) for contestant in some]
        turns += [contestant for contestant in some if contestant.engine == OURS]
        for contestant in turns:
            if time.monotonic() > deadline:
                record["failures"]["time"] = f"{args.minutes:g} minutes were over before all rounds were done"
                return
            run_one(contestant, order, 60 * args.run_minutes, record)
            save(record, args.output_dir)


def run_one(contestant: Contestant, order: dict[str, Any], timeout_s: float, record: dict[str, Any]) -> None:
    """One process of one engine; what it measured goes into the record, or why it did not."""
    label = f"{contestant.engine}, {contestant.precision}"
    print(f"{time.strftime('%H:%M:%S')} {label}", file=sys.stderr, flush=True)
    full = {**order, "model": contestant.model, "options": contestant.options, "began": time.time()}
    command = [str(contestant.python), str(contestant.script), json.dumps(full)]
    environment = variables(contestant.engine, contestant.python.parent.parent, order["num_threads"])
    try:
        code, output, errors = run_in_own_group(command, timeout_s, environment)
        result = result_in(output)
    except subprocess.TimeoutExpired:
        record["failures"][label] = f"no answer within {timeout_s:g} s"
        return
    except ValueError:
        record["failures"][label] = f"ended with {code}: {errors.strip()[-400:]}"
        return
    record["versions"][contestant.engine] = result["version"]
    record["failures"] |= {f"{label}, {name}": error for name, error in result["errors"].items()}
    record["runs"].append(
        {"engine": contestant.engine, "precision": contestant.precision, "seconds": result["seconds"]}
    )


def result_in(output: str) -> dict[str, Any]:
    """What an engine's script found, which may stand among lines of the engine's own. Raises ValueError."""
    for line in reversed(output.splitlines()):
        if line.startswith('{"version"'):
            result: dict[str, Any] = json.loads(line)
            return result
    raise ValueError("no result")


def run_in_own_group(command: Sequence[str], timeout_s: float, environment: dict[str, str]) -> tuple[int, str, str]:
    """Return code, output and errors of a process; nothing it started outlives it. Raises TimeoutExpired."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as process:
        try:
            output, errors = process.communicate(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, output, errors


def finish(record: dict[str, Any], num_threads: int, args: argparse.Namespace) -> None:
    record["ceilings_after"], _ = _ceilings(num_threads)
    save(record, args.output_dir)
    text = markdown(record)
    (args.output_dir / "peers.md").write_text(text + "\n", encoding="utf-8")
    if record["runs"]:
        draw(record, args.output_dir / "peers.png")
    print(text)


def save(record: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "peers.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _ceilings(num_threads: int) -> tuple[dict[str, Any], str]:
    probe = MachineProbe(num_threads, arena_bytes=ARENA_BYTES)
    return {f"threads_{num_threads}": probe.measure(num_threads, 5, 0.1)}, probe.isa


if __name__ == "__main__":
    raise SystemExit(main())
