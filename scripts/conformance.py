"""Programs that nobody here wrote, against a running server: what passed, what failed, what could not be had.

    python -m scripts.conformance [--url http://127.0.0.1:8000] [--only NAME,...] [--work-dir DIR]

Without an address a server of its own is started. Each program lives in a virtual environment of its own below
``--work-dir``, made on first use (minutes); one that cannot be set up is skipped with the reason, one that finds
something wrong makes the exit code 1. Nothing is asked of a model hub.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.local_server import LocalServer
from benchmarks.peers.environments import Environments, SetupFailed
from octavo.checkpoint.resolve import resolve_model

HERE = Path(__file__).resolve().parent
TASKS = HERE / "lm_eval_tasks"
DEPLOY = HERE.parent / "deploy"
OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
TIMEOUT_S = 900.0
LAST_CHARACTERS = 600
SAVE_TOKENIZER = """
import sys
from transformers import AutoTokenizer
source, name, target = sys.argv[1:]
AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(target)
"""


class Wrong(Exception):
    """What a program found, or that it did not come to its end."""


@dataclass(frozen=True)
class Setting:
    """Where the server is and what programs may use. ``folder`` is theirs, and goes when the script ends."""

    url: str
    model: str
    gguf: Path
    environments: Environments
    folder: Path

    def run(self, name: str, command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
        """What a program says. Raises Wrong with its last words where it fails."""
        environment = {**os.environ, **OFFLINE, "HF_HOME": str(self.folder / "hf"), "VLLM_NO_USAGE_STATS": "1"}
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                env=environment,
                timeout=timeout_s,
                cwd=self.folder,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Wrong(f"{name}: {error}") from None
        if done.returncode:
            raise Wrong(
                f"{name} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-LAST_CHARACTERS:]}"
            )
        return done.stdout


def main() -> int:
    args = parse()
    with tempfile.TemporaryDirectory() as name, server_at(args) as url:
        model = json.load(urllib.request.urlopen(f"{url}/v1/models", timeout=30))["data"][0]["id"]
        environments = Environments(args.work_dir / "environments")
        setting = Setting(url, model, Path(resolve_model(args.model).path), environments, Path(name))
        states = [told(program, *outcome(PROGRAMS[program], setting)) for program in args.only]
    return 1 if "failed" in states else 0


def told(program: str, state: str, words: str) -> str:
    """A line of the table, as soon as there is one."""
    print(f"{program:<{max(map(len, PROGRAMS))}}  {state:<7}  {words}", flush=True)
    return state


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="address of a running server (default: one is started)")
    parser.add_argument("--model", default="smollm2-135m", help="a GGUF model, the one that the server serves")
    parser.add_argument("--only", type=names, default=tuple(PROGRAMS), metavar="NAME,...", help=", ".join(PROGRAMS))
    parser.add_argument("--work-dir", type=Path, default=Path.home() / ".cache" / "octavo" / "peers")
    return parser.parse_args()


def names(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if unknown := [name for name in found if name not in PROGRAMS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(PROGRAMS)}")
    return found


@contextmanager
def server_at(args: argparse.Namespace) -> Iterator[str]:
    """The address that was given, or that of a server for as long as it is needed."""
    if args.url:
        yield args.url.rstrip("/")
        return
    with LocalServer(args.model, "--max-model-len", "2048", "--disable-access-log") as server:
        yield f"http://127.0.0.1:{server.wait_until_ready()}"


def outcome(check: Callable[[Setting], str], setting: Setting) -> tuple[str, str]:
    """ "passed", "failed" or "skipped", and what there is to say."""
    began = time.monotonic()
    try:
        words = check(setting)
    except SetupFailed as error:
        return "skipped", str(error)
    except Wrong as error:
        return "failed", str(error)
    return "passed", f"{words} ({time.monotonic() - began:.0f} s)"


# vllm bench serve


def vllm_bench(setting: Setting) -> str:
    """Streams of completions: every one comes to its end with all its tokens."""
    return load_by_vllm(setting, "openai", "/v1/completions")


def vllm_bench_chat(setting: Setting) -> str:
    return load_by_vllm(setting, "openai-chat", "/v1/chat/completions")


def load_by_vllm(setting: Setting, backend: str, endpoint: str) -> str:
    number, output_len = 20, 16
    python = setting.environments.python("vllm")
    result = setting.folder / f"{backend}.json"
    command = (
        *(str(python.with_name("vllm")), "bench", "serve", "--backend", backend, "--endpoint", endpoint),
        *("--base-url", setting.url, "--model", setting.model, "--tokenizer", str(tokenizer_folder(setting))),
        *("--dataset-name", "random", "--random-input-len", "64", "--random-output-len", str(output_len)),
        *("--num-prompts", str(number), "--max-concurrency", "8", "--ignore-eos", "--disable-tqdm"),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--goodput", "ttft:60000"),
        *("--save-result", "--result-dir", str(setting.folder), "--result-filename", result.name),
    )
    setting.run("vllm bench serve", command)
    found = json.loads(result.read_text())
    expect("completed", found["completed"], number)
    expect("failed", found["failed"], 0)
    expect("total_output_tokens", found["total_output_tokens"], number * output_len)
    return f"{number} requests, {found['total_output_tokens']} tokens, TTFT {found['mean_ttft_ms']:.0f} ms"


def tokenizer_folder(setting: Setting) -> Path:
    """The model's tokenizer as Transformers saves it."""
    target = setting.folder / "tokenizer"
    if not target.exists():
        python = setting.environments.python("vllm")
        gguf = setting.gguf
        setting.run("the tokenizer", [str(python), "-c", SAVE_TOKENIZER, str(gguf.parent), gguf.name, str(target)])
    return target


# lm-eval


def lm_eval_scores(setting: Setting) -> str:
    """Endings and texts scored by their log-probabilities; the server's own tokenizer is asked over HTTP."""
    found, samples = evaluate(setting, ("octavo_choices", "octavo_texts"))
    at_least("accuracy over four endings", found["octavo_choices"]["acc,none"], 0.6)
    perplexity = found["octavo_texts"]["byte_perplexity,none"]
    if not 1.0 < perplexity < 4.0:
        raise Wrong(f"a perplexity of {perplexity} per byte is not that of English")
    scores = [float(pair[0]) for sample in samples["octavo_choices"] for pair in sample["filtered_resps"]]
    if not all(score < 0 for score in scores):
        raise Wrong(f"log-probabilities above 0: {scores}")
    return (
        f"{len(scores)} endings scored, accuracy {found['octavo_choices']['acc,none']:.2f}, {perplexity:.2f} per byte"
    )


def lm_eval_answers(setting: Setting) -> str:
    """A few words, up to a stop string."""
    found, samples = evaluate(setting, ("octavo_answers",))
    share = found["octavo_answers"]["exact_match,first_word"]
    at_least("share of right answers", share, 0.5)
    texts = [sample["resps"][0][0] for sample in samples["octavo_answers"]]
    if cut := [text for text in texts if "\n" in text or "," in text]:
        raise Wrong(f"an answer has what should have stopped it: {cut[0]!r}")
    return f"{len(texts)} answers, {share:.2f} right"


def evaluate(setting: Setting, tasks: Sequence[str]) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Each task's figures and its samples."""
    program = setting.environments.python("lm-eval").with_name("lm_eval")
    output = setting.folder / "-".join(tasks)
    server = (
        *(f"model={setting.model}", f"base_url={setting.url}/v1/completions", "tokenizer_backend=remote"),
        *("num_concurrent=4", "max_retries=1"),
    )
    command = (
        *(str(program), "run", "--model", "local-completions", "--model_args", ",".join(server)),
        *("--tasks", ",".join(tasks), "--include_path", str(own_tasks(setting.folder))),
        *("--output_path", str(output), "--log_samples", "--batch_size", "4"),
    )
    setting.run("lm-eval", command)
    (results,) = output.rglob("results_*.json")
    samples = {path.name.split("_20")[0].removeprefix("samples_"): path for path in output.rglob("samples_*.jsonl")}
    lines = {task: [json.loads(line) for line in path.read_text().splitlines()] for task, path in samples.items()}
    return json.loads(results.read_text())["results"], lines


def own_tasks(folder: Path) -> Path:
    """The tasks, which name their data by an absolute path."""
    target = folder / "tasks"
    if not target.exists():
        shutil.copytree(TASKS, target)
        for path in target.glob("*.yaml"):
            path.write_text(path.read_text().replace("DATA", str(target)))
    return target


# What stands in deploy/


def linters(setting: Setting) -> str:
    """hadolint on the Dockerfile, and each Kubernetes object against the schema of its kind."""
    python = setting.environments.python("linters")
    setting.run("hadolint", [str(python.with_name("hadolint")), str(DEPLOY / "Dockerfile")])
    manifests = sorted(map(str, (DEPLOY / "kubernetes").glob("*.yaml")))
    setting.run("kubernetes-validate", [str(python.with_name("kubernetes-validate")), "--strict", *manifests])
    return f"a Dockerfile and {len(manifests)} manifest"


# Prometheus


def prometheus(setting: Setting) -> str:
    """Reads the metrics of what the others did, or of one request."""
    body = json.dumps({"model": setting.model, "prompt": "The sea is", "max_tokens": 8}).encode()
    request = urllib.request.Request(f"{setting.url}/v1/completions", body, {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=60).close()
    if not shutil.which("prometheus") and not shutil.which("apt-get"):
        raise SetupFailed("neither prometheus nor apt-get is here")
    output = setting.run("Prometheus", [sys.executable, str(HERE / "prometheus_check.py"), setting.url])
    return output.strip().splitlines()[-1]


PROGRAMS: dict[str, Callable[[Setting], str]] = {
    "vllm-bench": vllm_bench,
    "vllm-bench-chat": vllm_bench_chat,
    "lm-eval-scores": lm_eval_scores,
    "lm-eval-answers": lm_eval_answers,
    "linters": linters,
    "prometheus": prometheus,
}
"""The last one reads what the others left in the metrics."""


def expect(what: str, found: Any, wanted: Any) -> None:
    if found != wanted:
        raise Wrong(f"{what} is {found}, not {wanted}")


def at_least(what: str, found: float, wanted: float) -> None:
    if found < wanted:
        raise Wrong(f"{what} is {found}, below {wanted}")


if __name__ == "__main__":
    sys.exit(main())
