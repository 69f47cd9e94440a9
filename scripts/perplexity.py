"""Perplexity of a model under several settings of weights, on one fixed English text.

    python scripts/perplexity.py qwen2.5-coder-0.5b none/float32 gguf int8 int4 none/bfloat16 none/float32/int8

A setting is QUANTIZATION, QUANTIZATION/DTYPE or QUANTIZATION/DTYPE/KV_CACHE_DTYPE. The text is the language reference
that CPython carries for ``help()`` (``pydoc_data.topics``, of the standard library): English prose with some code,
there wherever Python is, and the same for one version of Python. Its hash is printed. It is cut into windows of tokens
that do not see each other.
"""

from __future__ import annotations

import argparse
import hashlib
import math
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from octavo import LLM, SamplingParams

PARAMS = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="as octavo generate takes it")
    parser.add_argument("settings", nargs="+", help="the first is what the others are compared with")
    parser.add_argument("--num-tokens", type=int, default=20_000, help="of the text (default: 20000)")
    parser.add_argument("--window", type=int, default=512, help="tokens that see each other (default: 512)")
    args = parser.parse_args()
    text = reference_text()
    print(f"text: {len(text):,} characters, sha256 {hashlib.sha256(text.encode()).hexdigest()[:16]}")
    first = None
    for setting in args.settings:
        value = perplexity(args.model, setting, text, args.num_tokens, args.window)
        first = first or value
        print(f"{args.model} {setting}: {value:.4f} ({100 * (value / first - 1):+.2f} %)", flush=True)


def reference_text() -> str:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    return "\n\n".join(topics[name] for name in sorted(topics))


def perplexity(model: str, setting: str, text: str, num_tokens: int, window: int) -> float:
    """exp of the mean negative logprob of the text's tokens."""
    options: dict[str, Any] = {"dtype": "auto", "enable_prefix_caching": False}
    options |= zip(("quantization", "dtype", "kv_cache_dtype"), setting.split("/"), strict=False)
    with LLM(model, max_model_len=window + 1, disable_log_stats=True, **options) as llm:
        token_ids = llm.get_tokenizer().encode(text)[:num_tokens]
        found = list(logprobs(llm, token_ids, window))
    return math.exp(-sum(found) / len(found))


def logprobs(llm: LLM, token_ids: list[int], window: int) -> Iterator[float]:
    for start in range(0, len(token_ids) - 1, window):
        prompt = token_ids[start : start + window]
        (output,) = llm.generate(prompt, PARAMS, use_tqdm=False)
        for token_id, row in zip(prompt[1:], (output.prompt_logprobs or [])[1:], strict=False):
            if row is not None:
                yield row[token_id].logprob


if __name__ == "__main__":
    main()
