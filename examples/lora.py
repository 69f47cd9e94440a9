"""One model, several adapters, one batch: each request says which LoRA adapter answers it.

The adapter here is made up on the spot (random numbers in PEFT's format), so what it says makes no sense.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from octavo import LLM, LoRARequest, SamplingParams
from octavo.checkpoint.adapter import projection_shapes

RANK = 8


def make_adapter(folder: Path, shapes: dict[str, tuple[int, int]]) -> None:
    """Write a random adapter of every linear layer, as ``PeftModel.save_pretrained`` would."""
    random = np.random.default_rng(0)
    tensors = {}
    for name, (out_features, in_features) in shapes.items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = random.standard_normal((RANK, in_features), np.float32) / 20
        tensors[f"base_model.model.{name}.lora_B.weight"] = (
            random.standard_normal((out_features, RANK), np.float32) / 20
        )
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": 16, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def main() -> None:
    """Ask the same question with and without the adapter, in one batch."""
    with LLM("smollm2-135m", enable_lora=True, max_loras=4, max_model_len=512) as llm:
        folder = Path(tempfile.mkdtemp()) / "made-up"
        make_adapter(folder, projection_shapes(llm.info.facts))
        adapters = [None, LoRARequest("made-up", 1, str(folder))]
        params = SamplingParams(temperature=0.0, max_tokens=12)
        outputs = llm.generate(["The capital of France is"] * 2, params, lora_request=adapters, use_tqdm=False)
        for adapter, output in zip(adapters, outputs, strict=True):
            print(f"{adapter.lora_name if adapter else 'the model itself'}: {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
