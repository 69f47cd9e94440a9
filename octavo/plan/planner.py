"""EngineConfig + ModelFacts + DeviceCaps -> Plan: every decision, with its reason, in one pure function.

What belongs together is decided in a file of its own beside this one; ``make_plan`` knows what depends on what.
"""

from __future__ import annotations

from typing import Any

from octavo.config.engine_config import EngineConfig
from octavo.plan.adapters import decide_adapter_bytes, decide_adapters
from octavo.plan.decision import Decision
from octavo.plan.kernels import (
    decide_attention_backend,
    decide_batch_invariant,
    decide_cpu_isa,
    decide_graph_capture,
    decide_kernels,
    decide_num_threads,
    decide_pinned_cpus,
)
from octavo.plan.memory import decide_kv_cache_bytes, decide_memory_fraction, memory_beside_weights
from octavo.plan.plan import Plan
from octavo.plan.speculation import (
    decide_drafter_bytes,
    decide_num_lookahead_tokens,
    decide_num_speculative_tokens,
    decide_speculative_method,
)
from octavo.plan.steps import (
    decide_block_size,
    decide_in_parts,
    decide_max_model_len,
    decide_max_steps_in_flight,
    decide_step_budgets,
)
from octavo.plan.weights import quantization_of, weight_bytes_of
from octavo.words.device_caps import DeviceCaps
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts

FULL_PRECISION = ("float32", "float64", "f32", "f64")
"""Types of checkpoints whose keys and values are cached as they are computed."""


def make_plan(config: EngineConfig, facts: ModelFacts, caps: DeviceCaps, drafter: DrafterFacts | None = None) -> Plan:
    """Decide everything that can be decided before a weight is loaded; ``drafter`` has weights of its own, if any.

    Raises ConfigError for what cannot be had (or contradicts itself), InsufficientMemoryError where not even the
    weights fit.
    """
    if config.model.trust_remote_code:
        raise ConfigError("trust_remote_code=True cannot be had: Octavo never runs a checkpoint's code; leave it out")
    dtype = _dtype(config, caps)
    kv_cache_dtype = _kv_cache_dtype(config, facts, dtype.value)
    max_model_len = decide_max_model_len(config, facts)
    longest = max_model_len.value or facts.max_position
    tokens, seqs = decide_step_budgets(config, longest, facts.is_encoder)
    kernels = decide_kernels(config, caps, dtype.value)
    quantization = Decision(*quantization_of(config, facts, kernels.value))
    runner = _runner(config, facts)
    drafting = decide_drafter_bytes(config, drafter, dtype.value, kernels.value)
    weight_bytes = weight_bytes_of(facts, dtype.value, quantization.value) + drafting.value
    adapters = decide_adapters(config, facts, runner.value)
    adapting = decide_adapter_bytes(config, facts, adapters, dtype.value, kernels.value)
    left = memory_beside_weights(caps, weight_bytes, adapting.value, dtype.value, quantization.value)
    block_size = decide_block_size(config)
    attention = decide_attention_backend(kernels.value, facts, block_size.value)
    speculation = decide_speculative_method(config, runner.value)
    threads = decide_num_threads(config, caps)
    decisions: dict[str, Decision[Any]] = {
        "device": _device(config, caps),
        "dtype": dtype,
        "quantization": quantization,
        "weight_bytes": Decision(weight_bytes, "of the tensors in the files' headers"),
        "drafter_bytes": drafting,
        "adapter_bytes": adapting,
        "kv_cache_dtype": kv_cache_dtype,
        "attention_backend": attention,
        "max_model_len": max_model_len,
        "block_size": block_size,
        "max_num_batched_tokens": tokens,
        "max_num_seqs": seqs,
        "enable_prefix_caching": decide_in_parts(config.cache.enable_prefix_caching, facts, runner.value),
        "enable_chunked_prefill": decide_in_parts(config.scheduler.enable_chunked_prefill, facts, runner.value),
        "kv_cache_bytes": decide_kv_cache_bytes(config, facts, drafter, left, kv_cache_dtype.value),
        "memory_fraction": decide_memory_fraction(config),
        "num_threads": threads,
        "pinned_cpus": decide_pinned_cpus(caps, threads.value, kernels.value),
        "max_steps_in_flight": decide_max_steps_in_flight(config),
        "kernels": kernels,
        "cpu_isa": decide_cpu_isa(config, caps, kernels.value),
        "graph_capture": decide_graph_capture(config, kernels.value),
        "batch_invariant": decide_batch_invariant(kernels.value, attention.value, facts),
        "runner": runner,
        "speculative_method": speculation,
        **adapters,
        "num_speculative_tokens": decide_num_speculative_tokens(config, speculation.value, drafter),
        "num_lookahead_tokens": decide_num_lookahead_tokens(config, speculation.value),
    }
    values = {name: decision.value for name, decision in decisions.items()}
    return Plan(**values, reasons={name: decision.reason for name, decision in decisions.items()})


def _device(config: EngineConfig, caps: DeviceCaps) -> Decision[str]:
    asked = config.parallel.device
    if asked not in ("auto", caps.device):
        raise ConfigError(f"device={asked} cannot be had: this machine offers {caps.device}; use that or auto")
    return Decision(caps.device, f"{caps.name}" + (" (auto)" if asked == "auto" else ", as asked"))


def _dtype(config: EngineConfig, caps: DeviceCaps) -> Decision[str]:
    asked = config.model.dtype
    if asked == "auto":
        best = caps.fast_dtypes[0]
        if best == "float32":
            return Decision(best, f"auto: {caps.name} has no bfloat16 unit")
        return Decision(best, f"auto: {caps.name} has a unit for it")
    if asked not in caps.supported_dtypes:
        raise ConfigError(
            f"dtype={asked} cannot be had on {caps.device}: there is {', '.join(caps.supported_dtypes)}; "
            "float32 holds every float16 value exactly"
        )
    return Decision(asked, "as asked" if asked in caps.fast_dtypes else "as asked; without a unit for it, it is slow")


def _kv_cache_dtype(config: EngineConfig, facts: ModelFacts, dtype: str) -> Decision[str]:
    """The model's dtype, but bfloat16 where float32 is neither asked for nor the checkpoint's own."""
    asked = config.cache.kv_cache_dtype
    if asked != "auto":
        return Decision(asked, "as asked")
    if dtype != "float32":
        return Decision(dtype, "auto: the model's dtype")
    if config.model.dtype != "auto":
        return Decision(dtype, "auto: the dtype that was asked for")
    if facts.stored_dtype in FULL_PRECISION:
        return Decision(dtype, f"auto: the checkpoint is in {facts.stored_dtype}")
    reason = f"auto: the checkpoint is in {facts.stored_dtype}, and attention reads half the bytes of float32"
    return Decision("bfloat16", reason)


def _runner(config: EngineConfig, facts: ModelFacts) -> Decision[str]:
    asked = config.model.runner
    if facts.is_encoder:
        if asked == "generate":
            raise ConfigError(
                f"runner=generate cannot be had: {facts.source_architecture} generates no text; it pools it "
                "(LLM.embed, octavo serve)"
            )
        return Decision("pooling", "an encoder")
    if asked != "auto":
        return Decision(asked, "as asked")
    if facts.pooling is not None:
        return Decision("pooling", "auto: the checkpoint says how it pools")
    return Decision("generate", "auto: a causal language model")
