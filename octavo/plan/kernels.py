"""What computes: kernels, their instruction set and threads, attention; and what follows for capture and for bits."""

from __future__ import annotations

from octavo.config.engine_config import EngineConfig
from octavo.plan.decision import Decision
from octavo.plan.native_ops import (
    CACHE_OPS,
    ENCODER_OPS,
    MODEL_OPS,
    NATIVE_BLOCK_SIZE_MULTIPLE,
    NATIVE_DTYPES,
    NATIVE_HEAD_SIZE_MULTIPLE,
    NATIVE_ISAS,
    NATIVE_OPS,
)
from octavo.words.device_caps import DeviceCaps
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts


def decide_kernels(config: EngineConfig, caps: DeviceCaps, dtype: str) -> Decision[str]:
    """Native ones where they can be had, unless plain torch is asked for. Raises ConfigError."""
    asked = config.parallel.kernels
    if asked == "reference":
        return Decision("reference", "as asked")
    reason = _reason_against_native(caps, dtype)
    if reason is None:
        return Decision("native", "as asked" if asked == "native" else "auto: the compiled library is installed")
    if asked == "native":
        raise ConfigError(f"kernels=native cannot be had: {reason}; use auto or reference")
    return Decision("reference", f"auto: {reason}")


def _reason_against_native(caps: DeviceCaps, dtype: str) -> str | None:
    if caps.device != "cpu":
        return f"they are for a CPU, and the device is {caps.device}"
    if not caps.has_native:
        return "the compiled library is not installed"
    if dtype not in NATIVE_DTYPES:
        return f"they compute in {' and '.join(NATIVE_DTYPES)}, not in {dtype}"
    return None


def decide_cpu_isa(config: EngineConfig, caps: DeviceCaps, kernels: str) -> Decision[str]:
    """The instruction set of native kernels: the highest, or a lower one that is asked for. Raises ConfigError."""
    asked = config.parallel.cpu_isa
    usable = [name for name, needed in NATIVE_ISAS.items() if needed.issubset(caps.isa)]
    if asked != "auto" and asked not in usable:
        raise ConfigError(f"cpu_isa={asked} cannot be had: {caps.name} can use {', '.join(usable)}; use one, or auto")
    if kernels != "native":
        return Decision("none", "no native kernels are used")
    if asked == "auto":
        return Decision(usable[-1], "auto: the highest that kernels and CPU have")
    return Decision(asked, "as asked")


def decide_num_threads(config: EngineConfig, caps: DeviceCaps) -> Decision[int]:
    """As many threads as there are CPUs for us, or as are asked for."""
    asked = config.parallel.num_threads
    if asked is None:
        return Decision(caps.num_threads, "the CPUs that affinity and cgroup quota leave us")
    more = f"; more than the {caps.num_threads} CPUs we may use" if asked > caps.num_threads else ""
    return Decision(asked, "as asked" + more)


def decide_pinned_cpus(caps: DeviceCaps, num_threads: int, kernels: str) -> Decision[tuple[int, ...]]:
    """The CPU of each thread, where no other program may run on it."""
    if kernels != "native":
        return Decision((), "the threads are torch's")
    if not caps.exclusive_cpus:
        return Decision((), "others may run on the same CPUs")
    if num_threads > len(caps.exclusive_cpus):
        return Decision((), f"{num_threads} threads on {len(caps.exclusive_cpus)} CPUs")
    return Decision(caps.exclusive_cpus[:num_threads], "the CPUs are ours alone")


def decide_attention_backend(kernels: str, facts: ModelFacts, block_size: int | None) -> Decision[str]:
    """Native attention, where it takes the model's heads and the cache's blocks."""
    if kernels != "native":
        return Decision("reference", "plain torch, as the other kernels are")
    if facts.head_size % NATIVE_HEAD_SIZE_MULTIPLE:
        multiple = f"multiples of {NATIVE_HEAD_SIZE_MULTIPLE}"
        return Decision("reference", f"native attention takes head sizes that are {multiple}, not {facts.head_size}")
    if (block_size or 0) % NATIVE_BLOCK_SIZE_MULTIPLE:
        multiple = f"multiples of {NATIVE_BLOCK_SIZE_MULTIPLE}"
        return Decision("reference", f"native attention takes block sizes that are {multiple}, not {block_size}")
    return Decision("cpu", "native kernels")


def decide_graph_capture(config: EngineConfig, kernels: str) -> Decision[bool]:
    """Whether the forward pass is recorded at warm-up."""
    if config.model.enforce_eager:
        return Decision(False, "enforce_eager, as asked")
    if kernels != "native":
        return Decision(False, "there is nothing to capture: ops run on plain torch")
    return Decision(True, "a step of native kernels can be one call")


def decide_batch_invariant(kernels: str, attention: str, facts: ModelFacts) -> Decision[bool]:
    """Whether a row's bits are the same in any batch: only native kernels promise that."""
    if kernels != "native":
        return Decision(False, "no, because ops run on plain torch, whose kernels change with the number of rows")
    needed = ENCODER_OPS if facts.is_encoder else MODEL_OPS
    own = CACHE_OPS if attention == "reference" and not facts.is_encoder else frozenset()
    missing = sorted((needed - NATIVE_OPS) | own)
    if missing:
        return Decision(False, f"no, because {', '.join(missing)} on plain torch")
    return Decision(True, "yes: every op has a native kernel that gives a row the same bits among any others")
