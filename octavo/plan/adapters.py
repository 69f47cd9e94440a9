"""How many LoRA adapters run and are kept, and the memory that they take."""

from __future__ import annotations

from octavo.config.engine_config import EngineConfig
from octavo.plan.decision import Decision, as_asked
from octavo.plan.executor import executor_backend
from octavo.plan.weights import adapter_bytes_of
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts


def decide_adapters(config: EngineConfig, facts: ModelFacts, runner: str) -> dict[str, Decision[int]]:
    """How many run in a step and how many are kept in memory, by the Plan's names. Raises ConfigError."""
    asked = config.lora
    if not asked.enable_lora:
        off = Decision(0, "LoRA is off, as asked or by default")
        return {"max_loras": off, "max_cpu_loras": off}
    if runner != "generate" or executor_backend(config) == "simulated":
        raise ConfigError("enable_lora=True cannot be had: adapters are for models that generate text; leave it out")
    in_memory = asked.max_loras if asked.max_cpu_loras is None else asked.max_cpu_loras
    if in_memory < asked.max_loras:
        raise ConfigError(
            f"max_cpu_loras={in_memory} is below max_loras={asked.max_loras}: all that run are in memory; raise it"
        )
    return {"max_loras": as_asked(asked.max_loras), "max_cpu_loras": as_asked(in_memory)}


def decide_adapter_bytes(
    config: EngineConfig, facts: ModelFacts, adapters: dict[str, Decision[int]], dtype: str, kernels: str
) -> Decision[int]:
    """One that runs may have been dropped from those in memory, and then is beside them."""
    most = sum(decision.value for decision in adapters.values())
    if not most:
        return Decision(0, "LoRA is off, as asked or by default")
    rank = config.lora.max_lora_rank
    stored = dtype if config.lora.lora_dtype == "auto" else config.lora.lora_dtype
    each = adapter_bytes_of(facts, rank, stored, kernels)
    return Decision(most * each, f"max_loras + max_cpu_loras = {most} of rank {rank} in {stored}, {each:,} bytes each")
