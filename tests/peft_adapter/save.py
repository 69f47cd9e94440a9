"""Writes the adapter beside it with PEFT, and what PEFT makes of it: PYTHONPATH=. python tests/peft_adapter/save.py

PEFT is not among the packages of the tests, so its files are kept: ``adapter_config.json`` and
``adapter_model.safetensors`` as ``save_pretrained`` writes them, for the random Llama of ``tests/tiny_models.py``, and
``answers.json`` with the greedy answer and the logits behind the prompt. Written with PEFT 0.21.2.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model

from tests.succ import NUM_TEXT_TOKENS
from tests.tiny_models import oracle, save_tiny_model

PROMPT = [(11 * i) % 250 + 3 for i in range(20)]
NUM_TOKENS = 12
CONFIG = LoraConfig(
    r=2,
    lora_alpha=4,
    target_modules=["q_proj", "v_proj", "up_proj"],
    rank_pattern={"v_proj": 1},
    alpha_pattern={"layers.1.self_attn.q_proj": 3},
    task_type="CAUSAL_LM",
)


def main() -> None:
    folder = Path(__file__).parent
    with tempfile.TemporaryDirectory() as place:
        model = get_peft_model(oracle(save_tiny_model(Path(place), "llama")), CONFIG)
    generator = torch.Generator().manual_seed(38)
    for name, parameter in sorted(model.named_parameters()):
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.3
    model.base_model.model.config.name_or_path = CONFIG.base_model_name_or_path = "tiny llama"
    model.save_pretrained(folder)
    (folder / "README.md").unlink()
    ids = list(PROMPT)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1]
        for _ in range(NUM_TOKENS):
            ids.append(int(model(torch.tensor([ids])).logits[0, -1, :NUM_TEXT_TOKENS].argmax()))
    answers = {
        "prompt": PROMPT,
        "greedy": ids[len(PROMPT) :],
        "logits": [round(each, 6) for each in logits.tolist()],
    }
    (folder / "answers.json").write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
