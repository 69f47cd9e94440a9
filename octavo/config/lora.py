"""LoRA adapters on top of the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from octavo.config.fields import Option


@dataclass(frozen=True, kw_only=True)
class LoRAConfig:
    """What the user asked about adapters."""

    enable_lora: Annotated[bool, Option("Requests may name a LoRA adapter (PEFT's format) to answer with.")] = False
    max_loras: Annotated[int, Option("Most different adapters in one step.", at_least=1, at_most=1024)] = 1
    max_cpu_loras: Annotated[
        int | None,
        Option("Most adapters in memory; others are read again when needed (default: max_loras).", at_least=1),
    ] = None
    max_lora_rank: Annotated[int, Option("Highest rank of an adapter.", at_least=1, at_most=256)] = 16
    lora_dtype: Annotated[
        str,
        Option(
            "Type that adapters are kept in; auto: the model's, or bfloat16 where they are stored in it.",
            choices=("auto", "float32", "bfloat16"),
        ),
    ] = "auto"
