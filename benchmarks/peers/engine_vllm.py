"""vLLM's CPU backend, compiled, on a folder of safetensors."""

from __future__ import annotations

from typing import Any

import runner
import vllm


class VLLM:
    version = vllm.__version__

    def __init__(self, order: dict[str, Any]) -> None:
        self._llm = vllm.LLM(
            order["model"],
            max_model_len=2048,
            max_num_seqs=64,
            enable_prefix_caching=True,
            seed=0,
            **order["options"],
        )

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        params = vllm.SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)
        outputs = self._llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def forget(self) -> None:
        self._llm.reset_prefix_cache()


if __name__ == "__main__":
    runner.main(VLLM)
