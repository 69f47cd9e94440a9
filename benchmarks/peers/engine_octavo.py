"""Octavo, as a library in this process."""

from __future__ import annotations

from typing import Any

import runner

import octavo
from octavo import LLM, SamplingParams


class Octavo:
    version = octavo.__version__

    def __init__(self, order: dict[str, Any]) -> None:
        longest = max((w["prefix_len"] + w["input_len"] + w["output_len"] for w in order["workloads"]), default=64)
        tokens = max((_num_tokens(w) for w in order["workloads"]), default=64)
        self._llm = LLM(
            order["model"],
            num_threads=order["num_threads"],
            max_model_len=max(longest, 64) + 64,
            num_gpu_blocks_override=tokens // 16 + 512,
            disable_log_stats=True,
            **order["options"],
        )

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def forget(self) -> None:
        self._llm.reset_prefix_cache()


def _num_tokens(workload: dict[str, Any]) -> int:
    return workload["num_requests"] * (workload["prefix_len"] + workload["input_len"] + workload["output_len"])


if __name__ == "__main__":
    runner.main(Octavo)
