"""Hugging Face Transformers: ``generate`` on a padded batch, which random prompts of one length do not need."""

from __future__ import annotations

from typing import Any

import runner
import torch
import transformers


class Transformers:
    version = f"{transformers.__version__}, torch {torch.__version__}"

    def __init__(self, order: dict[str, Any]) -> None:
        torch.set_num_threads(order["num_threads"])
        dtype = getattr(torch, order["options"]["dtype"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(order["model"], dtype=dtype).eval()

    @torch.inference_mode()
    def generate(self, prompts: list[list[int]], output_len: int) -> int:
        ids = torch.tensor(prompts)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=output_len,
            max_new_tokens=output_len,
            pad_token_id=0,
        )
        return (out.shape[1] - ids.shape[1]) * len(prompts)

    def forget(self) -> None:
        """Nothing is kept."""


if __name__ == "__main__":
    runner.main(Transformers)
