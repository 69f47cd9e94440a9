"""Speculation against plain decoding, one stream at a time: tokens per second, CPU time per token, and what to expect.

    python benchmarks/speculation.py --workload edit --pairs 7
    python benchmarks/speculation.py --model qwen2.5-coder-1.5b --method draft_model --draft qwen2.5-coder-0.5b
    python benchmarks/speculation.py --workload all --pairs 7      # CPU time per token on the five workloads

Runs alternate (plain, speculating), the same prompts in both; answers must be equal. Prints a JSON object per workload:
medians over the pairs of tokens per second and of both ratios, acceptance, and the share of distinct 4-grams of the
answers (an answer that goes round in circles would be too easy to guess). ``predicted_speed_up`` is the one that the
measured acceptance and step times allow: tokens per step of the speculating runs, over what a step of so many tokens
and its guesses take in steps of the plain ones. Where drafts are adaptive and do not pay they are left out, and the
speed-up to expect is 1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

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
    "steps": "octavo:num_steps",
    "drafted": "vllm:spec_decode_num_draft_tokens",
    "accepted": "vllm:spec_decode_num_accepted_tokens",
}


def counters(llm: LLM) -> dict[str, float]:
    """Totals since start."""
    metrics = llm.get_metrics()
    return {key: sum(each.value for each in metrics if each.name == name) for key, name in COUNTERS.items()}


def run(llm: LLM, prompts: list[str], max_tokens: int) -> Run:
    """Answer the prompts, one after the other."""
    llm.reset_prefix_cache()
    before = counters(llm)
    began, cpu = time.perf_counter(), time.process_time()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    outputs = [llm.chat(each, params, use_tqdm=False)[0] for each in asking(prompts)]
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    counts = {key: value - before[key] for key, value in counters(llm).items()}
    return Run([output.outputs[0].token_ids for output in outputs], seconds, cpu_seconds, counts)


def distinct_share(answers: list[list[int]], n: int = 4) -> float:
    """Distinct n-grams over n-grams, within each answer."""
    grams = [[tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] for ids in answers]
    return sum(len(set(each)) for each in grams) / max(sum(map(len, grams)), 1)


def median_seconds(llm: LLM, num_tokens: int, repeats: int = 15) -> float:
    """What a step of so many tokens of one request takes, logits of each included: that of a prompt to be scored."""
    times = []
    params = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0 if num_tokens > 1 else None)
    for repeat in range(repeats):
        prompt = [(repeat * 7919 + i * 31) % 20_000 + 100 for i in range(num_tokens)]
        llm.reset_prefix_cache()
        began = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def predicted_speed_up(plain: LLM, draft: LLM | None, ours: Run) -> float:
    """By measured acceptance and step times; at least 1, for drafts may be left out."""
    per_step = ours.num_tokens / ours.counts["steps"]
    drafts = ours.counts["drafted"] / ours.counts["steps"]
    one = median_seconds(plain, 1)
    many = one + (median_seconds(plain, 9) - one) * drafts / 8
    guesses = drafts * median_seconds(draft, 1) if draft is not None else 0.0
    return max(per_step * one / (many + guesses), 1.0)


def compare(plain: LLM, speculating: LLM, draft: LLM | None, workload: str, args: argparse.Namespace) -> dict[str, Any]:
    """The report of one workload."""
    pairs: list[tuple[Run, Run]] = []
    for _ in range(args.pairs):
        theirs, ours = (run(llm, WORKLOADS[workload], args.max_tokens) for llm in (plain, speculating))
        if ours.answers != theirs.answers:
            raise SystemExit("the answers differ: speculation is broken")
        pairs.append((theirs, ours))
    last = pairs[-1][1]

    def median(figure: Any) -> float:
        return round(statistics.median(figure(theirs, ours) for theirs, ours in pairs), 3)

    return {
        "workload": workload,
        "model": args.model,
        "method": args.method,
        "draft": args.draft,
        "pairs": args.pairs,
        "plain_tok_s": median(lambda theirs, _: theirs.num_tokens / theirs.seconds),
        "speculating_tok_s": median(lambda _, ours: ours.num_tokens / ours.seconds),
        "speed_up": median(lambda theirs, ours: theirs.seconds / ours.seconds),
        "predicted_speed_up": round(predicted_speed_up(plain, draft, last), 3),
        "cpu_ratio": median(lambda theirs, ours: ours.cpu_seconds / theirs.cpu_seconds),
        "tokens_per_step": round(last.num_tokens / last.counts["steps"], 3),
        "acceptance": round(last.counts["accepted"] / max(last.counts["drafted"], 1), 3),
        "drafts_per_step": round(last.counts["drafted"] / last.counts["steps"], 3),
        "distinct_4_grams": round(distinct_share(last.answers), 3),
        "num_tokens": last.num_tokens,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--method", default="ngram")
    parser.add_argument("--draft", default=None, help="the speculative_model")
    parser.add_argument("--workload", default="edit", choices=(*WORKLOADS, "all"))
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--no-adaptive", action="store_true")
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=7)
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
        for workload in WORKLOADS if args.workload == "all" else (args.workload,):
            print(json.dumps(compare(plain, speculating, draft, workload, args)), flush=True)
    if draft is not None:
        draft.close()


if __name__ == "__main__":
    main()
