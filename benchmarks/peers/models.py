"""One model in the forms that engines want: the GGUF file as shipped, safetensors, OpenVINO's, other GGUF types."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environments import Environments, SetupFailed

TO_SAFETENSORS = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, name, target = sys.argv[1:]
options = {"gguf_file": name, "dtype": torch.bfloat16, "quantization_config": GgufConfig(dequantize=True)}
AutoModelForCausalLM.from_pretrained(source, **options).save_pretrained(target)
AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(target)
"""


@dataclass(frozen=True)
class Models:
    """Forms of one GGUF file, made under ``root`` when they are asked for; each raises SetupFailed."""

    gguf: Path
    root: Path
    environments: Environments

    def safetensors(self) -> Path:
        """A Hugging Face folder in bfloat16."""
        target = self.root / f"{self.gguf.stem}-bf16"
        if not (target / "config.json").exists():
            python = self.environments.python("transformers")
            self._run([str(python), "-c", TO_SAFETENSORS, str(self.gguf.parent), self.gguf.name, str(target)])
        return target

    def openvino(self, weight_format: str) -> Path:
        """An OpenVINO folder with fp16 or int8 weights."""
        target = self.root / f"{self.gguf.stem}-openvino-{weight_format}"
        if not (target / "openvino_model.xml").exists():
            program = self.environments.python("openvino").with_name("optimum-cli")
            task = ("--task", "text-generation-with-past", "--weight-format", weight_format)
            self._run([str(program), "export", "openvino", "-m", str(self.safetensors()), *task, str(target)])
        return target

    def requantized(self, kind: str) -> Path:
        """A GGUF file of another type, by llama.cpp's own program."""
        target = self.root / f"{self.gguf.stem}.{kind}.gguf"
        if not target.exists():
            program = self.environments.llama_cpp() / "llama-quantize"
            self._run([str(program), "--allow-requantize", str(self.gguf), str(target), kind])
        return target

    def _run(self, command: Sequence[str]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        log = self.root / "models.log"
        with log.open("a", encoding="utf-8") as file:
            done = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT, timeout=3600, check=False)
        if done.returncode:
            raise SetupFailed(f"`{command[0]}` ended with {done.returncode}; see {log}")
