"""Speculation against plain decoding: tokens per second, CPU time per token, and at one stream what to expect.

    python benchmarks/speculation.py --pairs 7                                    # the editing workload, n-gram drafts
    python benchmarks/speculation.py --workload all --pairs 7 --prompts 1 --max-tokens 64     # CPU time on all five
    python benchmarks/speculation.py --workload all --pairs 7 --prompts 8 --streams 8 --max-tokens 64  # eight at once
    python benchmarks/speculation.py --model qwen2.5-coder-1.5b --method draft_model --draft qwen2.5-coder-0.5b \\
        --num-speculative-tokens 4 --workload code --pairs 7 --prompts 1

Runs alternate (plain, speculating), the same prompts in both, each pair the workload's next ``--prompts``; answers must
be equal, and after ``--seconds`` no pair begins any more. Prints a JSON object per workload: medians over the pairs of
tokens per second and of both ratios, acceptance, and the share of distinct 4-grams of the answers (an answer that goes
round in circles would be too easy to guess).

``predicted_speed_up`` is what the measured acceptance and times of steps allow: with p, d the seconds that the model
and the draft model take for the prompts, s a plain step, S the speculating steps and c the seconds of one with its
guesses, (p + tokens s) / (p + d + S c). Where adaptive drafts do not pay they are left out, and it is 1 at least.
``switched_off``: drafts were made in less than one step of ten. ``met`` says of each bar
of the project whether these medians meet it; the exit status is 1 where one of any workload is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo import LLM, SamplingParams

NAMES = ("parse_header", "merge_intervals", "render_table", "read_blocks", "count_words", "resolve_path")
BODY = """def {name}(items, limit=10):
    result = []
    for index, item in enumerate(items):
        if item is None:
            continue
        if index >= limit:
            raise ValueError(f"{name}: more than {{limit}} items")
        key = item.strip().lower()
        if key not in result:
            result.append(key)
    result.sort(key=len)
    return result
"""
EDIT = (
    "Rename the variable `result` to `{new}` in this function and give the whole function back, nothing else.\n\n{code}"
)
STORY = (
    "The old harbour master {name} kept a log of every ship, with its cargo, its captain and the weather of the day."
)
TOPICS = ("a paper boat", "the first telescope", "two neighbours", "a mountain hut", "bread", "a lost letter")
TASKS = (
    "reads a CSV file",
    "sorts words by length",
    "finds primes",
    "merges two dicts",
    "rotates a list",
    "parses dates",
)


def asking(texts: list[str]) -> list[list[dict[str, str]]]:
    """A conversation for each."""
    return [[{"role": "user", "content": text}] for text in texts]


def fields(name: str) -> str:
    """A record to be written as JSON."""
    return f"name: {name}, port: 8080, host: 127.0.0.1, retries: 3, timeout: 30, tags: fast, local, tested"


WORKLOADS: dict[str, list[str]] = {
    "edit": [EDIT.format(new=f"{name}_keys", code=BODY.format(name=name)) for name in NAMES],
    "code": [f"Write a Python function that {task}, with a docstring and an example." for task in TASKS],
    "prose": [f"Write a short story about {topic}." for topic in TOPICS],
    "summary": [f"Summarise in two sentences: {STORY.format(name=name)} {STORY.format(name=name)}" for name in NAMES],
    "json": [f"Write these fields as a JSON object and repeat it for three copies: {fields(name)}" for name in NAMES],
}


@dataclass
class Run:
    """One pass over a workload."""

    answers: list[list[int]]
    seconds: float
    cpu_seconds: float
    counts: dict[str, float] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return sum(map(len, self.answers))


COUNTERS = {
    "drafts": "vllm:spec_decode_num_drafts",
    "steps": "octavo:num_steps",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
    "trials": "octavo:spec_decode_num_trials",
}


def counters(llm: LLM) -> dict[str, float]:
    """Totals since start."""
    metrics = llm.get_metrics()
    return {key: sum(each.value for each in metrics if each.name == name) for key, name in COUNTERS.items()}


def run(llm: LLM, prompts: list[str], max_tokens: int, temperature: float = 0.0, streams: int = 1) -> Run:
    """Answer the prompts, so many at once."""
    llm.reset_prefix_cache()
    before = counters(llm)
    began, cpu = time.perf_counter(), time.process_time()
    params = SamplingParams(temperature=temperature, seed=1, max_tokens=max_tokens)
    groups = (asking(prompts[start : start + streams]) for start in range(0, len(prompts), streams))
    outputs = [output for group in groups for output in llm.chat(group, params, use_tqdm=False)]
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    counts = {key: value - before[key] for key, value in counters(llm).items()}
    return Run([output.outputs[0].token_ids for output in outputs], seconds, cpu_seconds, counts)


def distinct_share(answers: list[list[int]], n: int = 4) -> float:
    """Distinct n-grams over n-grams, within each answer."""
    grams = [[tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] for ids in answers]
    return sum(len(set(each)) for each in grams) / max(sum(map(len, grams)), 1)


def median_seconds(llm: LLM, num_tokens: int, repeats: int = 5) -> float:
    """What a step of so many tokens of one request takes, logits of each included: that of a prompt to be scored."""
    times = []
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0 if num_tokens > 1 else None)
    for repeat in range(repeats):
        prompt = [(repeat * 7919 + i * 31) % 20_000 + 100 for i in range(num_tokens)]
        llm.reset_prefix_cache()
        began = time.perf_counter()
        llm.generate({"prompt_token_ids": prompt}, params, use_tqdm=False)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


class Costs(NamedTuple):
    """Seconds of a step of one token and of nine, of a draft model's step, and of a pair's prompts in both models."""

    one: float
    nine: float
    guess: float
    prompts: float
    draft_prompts: float

    def predicted_speed_up(self, ours: Run) -> float:
        """By the acceptance of a run; at least 1, for drafts may be left out."""
        steps, drafted = ours.counts["steps"], ours.counts["drafted"]
        plain = self.prompts + ours.num_tokens * self.one
        verified = drafted * (self.nine - self.one) / 8
        return max(
            plain / (self.prompts + self.draft_prompts + steps * self.one + verified + drafted * self.guess), 1.0
        )


def measured_costs(plain: LLM, draft: LLM | None, prompts: list[str]) -> Costs:
    """In the same minutes as the runs."""
    return Costs(
        one=median_seconds(plain, 1),
        nine=median_seconds(plain, 9),
        guess=median_seconds(draft, 1) if draft is not None else 0.0,
        prompts=run(plain, prompts, 1).seconds,
        draft_prompts=run(draft, prompts, 1).seconds if draft is not None else 0.0,
    )


def compare(plain: LLM, speculating: LLM, draft: LLM | None, workload: str, args: argparse.Namespace) -> dict[str, Any]:
    """The report of one workload."""
    pairs: list[tuple[Run, Run, float]] = []
    began = time.perf_counter()
    while len(pairs) < args.pairs and (not pairs or time.perf_counter() - began < args.seconds):
        prompts = next_prompts(workload, len(pairs), args.prompts)
        theirs, ours = (
            run(llm, prompts, args.max_tokens, args.temperature, args.streams) for llm in (plain, speculating)
        )
        if ours.answers != theirs.answers:
            raise SystemExit("the answers differ: speculation is broken")
        predicted = measured_costs(plain, draft, prompts).predicted_speed_up(ours) if args.streams == 1 else 1.0
        pairs.append((theirs, ours, predicted))

    def median(figure: Callable[[Run, Run], float]) -> float:
        return round(statistics.median(figure(theirs, ours) for theirs, ours, _ in pairs), 3)

    predicted = round(statistics.median(each for *_, each in pairs), 3)
    of_predicted = round(statistics.median(t.seconds / o.seconds / each for t, o, each in pairs), 3)
    answers = [answer for _, ours, _ in pairs for answer in ours.answers]
    report = {
        "workload": workload,
        "model": args.model,
        "method": args.method,
        "draft": args.draft,
        "pairs": len(pairs),
        "streams": args.streams,
        "plain_tok_s": median(lambda theirs, _: theirs.num_tokens / theirs.seconds),
        "speculating_tok_s": median(lambda _, ours: ours.num_tokens / ours.seconds),
        "speed_up": median(lambda theirs, ours: theirs.seconds / ours.seconds),
        "predicted_speed_up": predicted,
        "share_of_predicted": of_predicted,
        "cpu_ratio": median(cpu_ratio_of),
        "tokens_per_step": median(lambda _, ours: ours.num_tokens / ours.counts["steps"]),
        "acceptance": median(lambda _, ours: ours.counts["accepted"] / max(ours.counts["drafted"], 1)),
        "drafts_per_step": median(lambda _, ours: ours.counts["drafted"] / ours.counts["steps"]),
        "distinct_4_grams": round(distinct_share(answers), 3),
        "trials_per_token": median(lambda _, ours: ours.counts["trials"] / ours.num_tokens),
        "num_tokens": sum(map(len, answers)),
        "switched_off": median(lambda _, ours: ours.counts["drafts"] / ours.counts["steps"]) < 0.1,
        "speed_ups": [round(theirs.seconds / ours.seconds, 3) for theirs, ours, _ in pairs],
        "cpu_ratios": [round(cpu_ratio_of(theirs, ours), 3) for theirs, ours, _ in pairs],
    }
    return report | {"met": bars_met(report)}


def bars_met(report: dict[str, Any]) -> dict[str, bool]:
    """The bars that there are for this method and workload, and whether the medians meet them."""
    met = {"cpu_ratio <= 1.03": report["cpu_ratio"] <= 1.03}
    if report["streams"] > 1:
        return met
    if report["method"] == "ngram" and report["workload"] == "edit":
        met["speed_up >= 1.8"] = report["speed_up"] >= 1.8
        met["distinct_4_grams >= 0.5"] = report["distinct_4_grams"] >= 0.5
    if report["method"] == "draft_model":
        pays = report["share_of_predicted"] >= 0.9 and report["speed_up"] > 1
        met["share_of_predicted >= 0.9 and speed_up > 1, or switched off"] = report["switched_off"] or pays
    return met


def next_prompts(workload: str, pair: int, number: int) -> list[str]:
    """Those of a pair: the workload's in turn."""
    prompts = WORKLOADS[workload]
    return [prompts[(pair * number + index) % len(prompts)] for index in range(number)]


def cpu_ratio_of(theirs: Run, ours: Run) -> float:
    """CPU time per token over that of plain decoding."""
    return ours.cpu_seconds / theirs.cpu_seconds


def main() -> int:
    """Measure and print; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--method", default="ngram")
    parser.add_argument("--draft", default=None, help="the speculative_model")
    parser.add_argument("--workload", default="edit", choices=(*WORKLOADS, "all"))
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--no-adaptive", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=6, help="prompts of a pair")
    parser.add_argument("--streams", type=int, default=1, help="prompts answered at once")
    parser.add_argument("--seconds", type=float, default=600.0, help="for a workload; no pair begins after them")
    args = parser.parse_args()
    drafting: dict[str, Any] = {
        "speculative_method": args.method,
        "speculative_model": args.draft,
        "num_speculative_tokens": args.num_speculative_tokens,
        "adaptive_speculation": not args.no_adaptive,
    }
    common: dict[str, Any] = {"max_model_len": 1024}
    draft = LLM(args.draft, **common) if args.method == "draft_model" else None
    with LLM(args.model, **common) as plain, LLM(args.model, **common, **drafting) as speculating:
        met: list[bool] = []
        for workload in WORKLOADS if args.workload == "all" else (args.workload,):
            report = compare(plain, speculating, draft, workload, args)
            print(json.dumps(report), flush=True)
            met += report["met"].values()
    if draft is not None:
        draft.close()
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
