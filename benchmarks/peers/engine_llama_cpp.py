"""llama.cpp, by its own benchmarks: llama-bench for one stream, llama-batched-bench for many.

Prompt and output are timed together, as for every other engine. Prompts are random in them too. A shared prefix with
something after it is not among what they can do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from workloads import STARTUP, Workload

WITHOUT_AMX = {"llama-bench": ("--repack", "0"), "llama-batched-bench": ("--no-repack",)}
KV_CACHE: dict[str, tuple[str, ...]] = {"auto": (), "int8": ("-ctk", "q8_0", "-ctv", "q8_0", "-fa", "1")}


class LlamaCpp:
    def __init__(self, order: dict[str, Any]) -> None:
        self._bin = Path(order["options"]["bin"])
        self._model = order["model"]
        self._threads = str(order["num_threads"])
        self._cache = KV_CACHE[order["options"]["kv_cache"]]
        self._build = ""
        self._avoids_amx = False

    @property
    def version(self) -> str:
        return self._build + (", without AMX, in which it ends with signal 4" if self._avoids_amx else "")

    def startup(self, began: float) -> float:
        """Seconds of a process that loads the model and makes one token."""
        self._bench("-p", "0", "-n", "1", "--no-warmup")
        return time.time() - began

    def seconds(self, workload: Workload) -> float:
        if workload.prefix_len:
            raise RuntimeError("its benchmarks have no prompts that share only a prefix")
        return self._one(workload) if workload.num_requests == 1 else self._many(workload)

    def _one(self, workload: Workload) -> float:
        (row,) = self._bench("-p", "0", "-n", "0", "-pg", f"{workload.input_len},{workload.output_len}")
        return float(row["avg_ns"]) / 1e9

    def _many(self, workload: Workload) -> float:
        number, own = workload.num_requests, workload.input_len + workload.output_len
        context = max(number * own, 512)
        lines = self._run(
            "llama-batched-bench",
            *("-c", str(context), "-b", "2048", "-ub", "512", "-npp", str(workload.input_len)),
            *("-ntg", str(workload.output_len), "-npl", str(number), "--output-format", "jsonl"),
        ).splitlines()
        (row,) = [json.loads(line) for line in lines if line.startswith("{")]
        return float(row["t"])

    def _bench(self, *flags: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = json.loads(self._run("llama-bench", *flags, "-r", "1", "-o", "json"))
        self._build = f"build {rows[0]['build_commit']}"
        return rows

    def _run(self, program: str, *flags: str) -> str:
        command = [str(self._bin / program), "-m", self._model, "-t", self._threads, *self._cache, *flags]
        if self._avoids_amx:
            command += WITHOUT_AMX[program]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == -signal.SIGILL and not self._avoids_amx:
            self._avoids_amx = True
            return self._run(program, *flags)
        if done.returncode:
            raise RuntimeError(f"{program} ended with {done.returncode}: {done.stderr[-300:]}")
        return done.stdout


def main() -> None:
    order = json.loads(sys.argv[1])
    engine = LlamaCpp(order)
    result: dict[str, Any] = {"seconds": {STARTUP.name: engine.startup(order["began"])}, "errors": {}}
    for fields in order["workloads"]:
        workload = Workload(**fields)
        if workload.name == STARTUP.name:
            continue
        try:
            result["seconds"][workload.name] = engine.seconds(workload)
        except Exception as error:
            result["errors"][workload.name] = f"{type(error).__name__}: {error}"[:500]
    print(json.dumps({"version": engine.version, **result}), flush=True)


if __name__ == "__main__":
    main()
