"""Octavo's server under load: beside its own engine without a server, and beside the servers of its peers.

    python benchmarks/peers/serving.py --minutes 8
    python benchmarks/peers/serving.py --parts open --rate 0.3 --requests 10 --minutes 10

Part "closed": 64 clients, each with one request after the other, and `octavo bench throughput` with requests of
the same lengths, in turn. Part "open": requests at random times (Poisson) whose lengths are spread as those of
ShareGPT, at a share of the closed loop's throughput; the same for every server, one alive at a time, in turn. Sets
up each peer on first use; one that cannot be had is left out with its reason. Writes serving.json and serving.md.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments import Environments, SetupFailed
from lengths import sharegpt_like, write_requests
from models import Models
from servers import Server, ServerFailed, Servers
from serving_report import markdown

from octavo.checkpoint.resolve import resolve_model
from octavo.device.platform.detect import detect_caps

PARTS = ("closed", "open")
PEERS = ("llama.cpp", "vllm")
OURS = "octavo"
OCTAVO = (sys.executable, "-m", "octavo.cli.main")


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # no server outlives this script
    args.output_dir.mkdir(parents=True, exist_ok=True)
    servers = make_servers(args)
    record = start_record(args, servers)
    deadline = time.monotonic() + 60 * args.minutes
    if "closed" in args.parts:
        closed_loop(servers, args, record, deadline)
    if "open" in args.parts:
        open_loop(servers, args, record, deadline)
    text = markdown(record)
    (args.output_dir / "serving.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF model, by name or path")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS)
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=PEERS)
    parser.add_argument("--rounds", type=int, default=2, help="turns of everyone (default: 2)")
    parser.add_argument("--minutes", type=float, default=30, help="nothing is started after this (default: 30)")
    parser.add_argument("--clients", type=int, default=64, help="of the closed loop, and most at once of every server")
    parser.add_argument("--per-client", type=int, default=1, help="requests of each of them (default: 1)")
    parser.add_argument("--input-len", type=int, default=128, help="of the closed loop")
    parser.add_argument("--output-len", type=int, default=128, help="of the closed loop")
    parser.add_argument("--share", type=float, default=0.7, help="of the closed loop's throughput, to be asked for")
    parser.add_argument("--rate", type=float, help="requests a second of the open loop, in place of a share")
    parser.add_argument("--seconds", type=float, default=30, help="for which the open loop sends (default: 30)")
    parser.add_argument("--requests", type=int, help="of the open loop, in place of seconds")
    parser.add_argument("--goodput", nargs="+", default=["ttft:2000", "itl:500"], help="a good request (ms)")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--start-timeout", type=float, default=400, help="seconds in which a server must be up")
    parser.add_argument("--load-timeout", type=float, default=600, help="seconds in which one load must be over")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work-dir", type=Path, default=Path.home() / ".cache" / "octavo" / "peers")
    parser.add_argument("--output-dir", type=Path, default=Path("serving-results"))
    return parser.parse_args(argv)


def make_servers(args: argparse.Namespace) -> Servers:
    environments = Environments(args.work_dir / "environments")
    models = Models(Path(resolve_model(args.model).path), args.work_dir / "models", environments)
    caps = detect_caps("cpu")
    num_threads = args.num_threads or caps.num_threads
    return Servers(environments, models, num_threads, caps.fast_dtypes[0], max_num_seqs=args.clients)


def start_record(args: argparse.Namespace, servers: Servers) -> dict[str, Any]:
    return {
        "model": args.model,
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": {"cpu": detect_caps("cpu").name, "num_threads": servers.num_threads},
        "closed_load": {
            "clients": args.clients,
            "requests": args.clients * args.per_client,
            "input_len": args.input_len,
            "output_len": args.output_len,
        },
        "open_load": None,
        "closed": [],
        "open": [],
        "failures": {},
    }


# One load


def closed_loop(servers: Servers, args: argparse.Namespace, record: dict[str, Any], deadline: float) -> None:
    """Without a server, with one, and so on; the requests are of the same lengths."""
    for run in args.rounds * (offline, served):
        if not time_is_left(record, deadline):
            return
        tell(run.__name__)
        record["closed"].append({"kind": run.__name__, **run(servers, args)})
        save(record, args.output_dir)


def offline(servers: Servers, args: argparse.Namespace) -> dict[str, Any]:
    shape = ("--input-len", str(args.input_len), "--output-len", str(args.output_len))
    number = ("--num-prompts", str(args.clients * args.per_client))
    result = args.output_dir / "offline.json"
    model = ("--model", str(servers.models.gguf))
    command = (*OCTAVO, "bench", "throughput", *model, *shape, *number, *servers.octavo_flags)
    found = run_for_json((*command, "--output-json", str(result)), result, args.load_timeout)
    return {"output_throughput": found["output_tokens_per_second"], "duration": found["elapsed_time"]}


def served(servers: Servers, args: argparse.Namespace) -> dict[str, Any]:
    load = (
        *("--dataset-name", "random", "--random-input-len", str(args.input_len)),
        *("--random-output-len", str(args.output_len), "--num-prompts", str(args.clients * args.per_client)),
        *("--max-concurrency", str(args.clients)),
    )
    return under_load(servers.server(OURS), load, args)


def open_loop(servers: Servers, args: argparse.Namespace, record: dict[str, Any], deadline: float) -> None:
    """All servers in turn, under the same requests at the same times."""
    load = record["open_load"] = plan_load(args, record)
    requests = args.output_dir / "requests.jsonl"
    write_requests(load["lengths"], args.model, requests)
    flags = (
        *("--dataset-name", "custom", "--dataset-path", str(requests), "--num-prompts", str(len(load["lengths"]))),
        *("--request-rate", f"{load['rate']:.4f}", "--goodput", *args.goodput),
    )
    for server in args.rounds * gather(servers, args, record):
        if not time_is_left(record, deadline):
            return
        if server.engine in record["failures"]:
            continue  # it would take as long again
        tell(server.engine)
        try:
            found = under_load(server, flags, args)
        except (ServerFailed, subprocess.SubprocessError) as error:
            record["failures"][server.engine] = str(error)
            continue
        record["open"].append({"engine": server.engine, "precision": server.precision, **found})
        save(record, args.output_dir)


def plan_load(args: argparse.Namespace, record: dict[str, Any]) -> dict[str, Any]:
    """The rate, and (input, output) lengths for as many seconds as were asked for."""
    lengths = sharegpt_like(args.seed)
    if args.rate is None:
        rates = [run["output_throughput"] for run in record["closed"] if run["kind"] == "served"]
        if not rates:
            raise SystemExit("the open loop's rate is a share of the closed loop's: run that part too, or give --rate")
        args.rate = args.share * statistics.median(rates) / statistics.fmean(output for _, output in lengths)
    number = args.requests or max(2, round(args.rate * args.seconds))
    return {
        "rate": args.rate,
        "goodput": list(args.goodput),
        "lengths": [lengths[i % len(lengths)] for i in range(number)],
    }


def gather(servers: Servers, args: argparse.Namespace, record: dict[str, Any]) -> list[Server]:
    """Everyone that can be had; the record is told who cannot."""
    found = []
    for engine in (OURS, *args.peers):
        try:
            found.append(servers.server(engine))
        except (SetupFailed, OSError, subprocess.TimeoutExpired) as error:
            record["failures"][engine] = str(error)
    return found


def under_load(server: Server, load: Sequence[str], args: argparse.Namespace) -> dict[str, Any]:
    """Start the server, put it under load and end it. Raises ServerFailed and SubprocessError."""
    result = args.output_dir / "load.json"
    began = time.monotonic()
    with server.running(args.output_dir / f"{server.engine}.log", args.start_timeout) as url:
        ready_s = time.monotonic() - began
        command = (
            *(*OCTAVO, "bench", "serve", "--base-url", url, "--tokenizer", args.model, "--ignore-eos", *load),
            *("--seed", str(args.seed), "--percentile-metrics", "ttft,tpot,itl", "--metric-percentiles", "50,99"),
            *("--save-result", "--result-filename", str(result)),
        )
        found = run_for_json(command, result, args.load_timeout)
    if found["failed"]:
        raise subprocess.SubprocessError(f"{found['failed']} requests failed")
    return {"ready_s": ready_s, **found}


def run_for_json(command: Sequence[str], result: Path, timeout_s: float) -> dict[str, Any]:
    """What a command leaves in ``result``. Raises SubprocessError with its last words."""
    result.unlink(missing_ok=True)
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise subprocess.SubprocessError((done.stdout + done.stderr).strip()[-400:])
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def time_is_left(record: dict[str, Any], deadline: float) -> bool:
    if time.monotonic() < deadline:
        return True
    record["failures"]["time"] = "the minutes were over before all rounds were done"
    return False


def tell(what: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def save(record: dict[str, Any], folder: Path) -> None:
    (folder / "serving.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
