"""OpenVINO GenAI: continuous batching with prefix caching, on a folder that optimum-cli exported."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino as ov
import openvino_genai
import runner

CACHE_GB = 4


class OpenVINO:
    version = openvino_genai.__version__

    def __init__(self, order: dict[str, Any]) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.enable_prefix_caching = True
        settings = {"INFERENCE_NUM_THREADS": order["num_threads"]}
        self._pipe = openvino_genai.ContinuousBatchingPipeline(order["model"], scheduler, "CPU", settings)

    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = output_len
        config.min_new_tokens = output_len
        config.ignore_eos = True
        config.do_sample = False
        tensors = [ov.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = self._pipe.generate(tensors, [config] * len(prompts))
        return sum(len(result.m_generation_ids[0]) for result in results)

    def forget(self) -> None:
        """Prompts of different workloads share no prefix."""


if __name__ == "__main__":
    runner.main(OpenVINO)
