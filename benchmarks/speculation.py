"""Speculation on an editing workload: tokens per second with and without it, one stream at a time.

    python benchmarks/speculation.py --model qwen2.5-coder-0.5b --pairs 7

Each prompt asks for a small change to a function, so that the answer repeats most of it. Runs alternate (plain,
speculating), the same prompts in both; answers must be equal. Prints a JSON object: medians of tokens per second and of
the ratio of CPU seconds per token over the pairs, acceptance, and the share of distinct 4-grams of the answers (an
answer that goes round in circles would be too easy to guess).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

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
ASK = (
    "Rename the variable `result` to `{new}` in this function and give the whole function back, nothing else.\n\n{code}"
)


def conversations() -> list[list[dict[str, str]]]:
    """One edit for each name."""
    return [
        [{"role": "user", "content": ASK.format(new=f"{name}_keys", code=BODY.format(name=name))}] for name in NAMES
    ]


def run(llm: LLM, max_tokens: int) -> tuple[list[list[int]], float, float, int, int]:
    """Answers, seconds, CPU seconds, drafts, and drafts that were right."""
    llm.reset_prefix_cache()
    began, cpu = time.perf_counter(), time.process_time()
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    outputs = [llm.chat(each, params, use_tqdm=False)[0] for each in conversations()]
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    metrics = [output.metrics for output in outputs if output.metrics is not None]
    drafted, right = (
        sum(getattr(each, name) for each in metrics) for name in ("num_draft_tokens", "num_accepted_tokens")
    )
    return [output.outputs[0].token_ids for output in outputs], seconds, cpu_seconds, drafted, right


def distinct_share(answers: list[list[int]], n: int = 4) -> float:
    """Distinct n-grams over n-grams, within each answer."""
    grams = [[tuple(ids[i : i + n]) for i in range(len(ids) - n + 1)] for ids in answers]
    return sum(len(set(each)) for each in grams) / max(sum(map(len, grams)), 1)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--num-speculative-tokens", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    drafting = {"speculative_method": "ngram", "num_speculative_tokens": args.num_speculative_tokens}
    rates, cpu_ratios = [], []
    with LLM(args.model, max_model_len=2048) as plain, LLM(args.model, max_model_len=2048, **drafting) as speculating:
        for _ in range(args.pairs):
            expected, seconds, cpu, *_ = run(plain, args.max_tokens)
            answers, our_seconds, our_cpu, drafted, right = run(speculating, args.max_tokens)
            if answers != expected:
                raise SystemExit("the answers differ: speculation is broken")
            num_tokens = sum(map(len, answers))
            rates.append((num_tokens / seconds, num_tokens / our_seconds))
            cpu_ratios.append(our_cpu / cpu)
    report = {
        "model": args.model,
        "plain_tok_s": round(statistics.median(rate for rate, _ in rates), 2),
        "speculating_tok_s": round(statistics.median(rate for _, rate in rates), 2),
        "speed_up": round(statistics.median(ours / theirs for theirs, ours in rates), 3),
        "cpu_ratio": round(statistics.median(cpu_ratios), 3),
        "acceptance": round(right / max(drafted, 1), 3),
        "distinct_4_grams": round(distinct_share(answers), 3),
        "num_tokens": num_tokens,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
