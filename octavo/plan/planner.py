"""EngineConfig + ModelFacts + DeviceCaps -> Plan: every decision, with its reason, in one pure function."""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from octavo.config.engine_config import EngineConfig
from octavo.config.speculation import SpeculationConfig
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
from octavo.plan.plan import Plan
from octavo.plan.weights import adapter_bytes_of, quantization_of, weight_bytes_of
from octavo.util.byte_size import format_byte_size
from octavo.words.device_caps import DeviceCaps
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.errors import ConfigError, InsufficientMemoryError
from octavo.words.kv_cache_spec import FullAttentionSpec
from octavo.words.model_facts import ModelFacts

DEFAULT_BLOCK_SIZE = 32
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048
DEFAULT_MAX_NUM_SEQS = 128
# KV memory when nothing is asked: room for a few long requests, so that the engine starts fast.
DEFAULT_NUM_LONG_REQUESTS = 4
MIN_DEFAULT_KV_BYTES = 256 << 20

FULL_PRECISION = ("float32", "float64", "f32", "f64")
"""Types of checkpoints whose keys and values are cached as they are computed."""

DRAFTERS_WITH_CACHE = ("draft_model", "eagle")
_MAX_STEPS_IN_FLIGHT = {"uni": 1, "simulated": 2}

T = TypeVar("T")


class Decision(NamedTuple, Generic[T]):
    """A value and the one line that says why."""

    value: T
    reason: str


def make_plan(config: EngineConfig, facts: ModelFacts, caps: DeviceCaps, drafter: DrafterFacts | None = None) -> Plan:
    """Decide everything that can be decided before a weight is loaded; ``drafter`` has weights of its own, if any.

    Raises ConfigError for what cannot be had (or contradicts itself), InsufficientMemoryError where not even the
    weights fit.
    """
    if config.model.trust_remote_code:
        raise ConfigError("trust_remote_code=True cannot be had: Octavo never runs a checkpoint's code; leave it out")
    dtype = _dtype(config, caps)
    kv_cache_dtype = _kv_cache_dtype(config, facts, dtype.value)
    max_model_len = _max_model_len(config, facts)
    longest = max_model_len.value or facts.max_position
    tokens, seqs = _step_budgets(config, longest, facts.is_encoder)
    kernels = _kernels(config, caps, dtype.value)
    quantization = Decision(*quantization_of(config, facts, kernels.value))
    runner = _runner(config, facts)
    drafting = _drafter_bytes(config, drafter, dtype.value, kernels.value)
    weight_bytes = weight_bytes_of(facts, dtype.value, quantization.value) + drafting.value
    adapters = _adapters(config, facts, runner.value)
    adapting = _adapter_bytes(config, facts, adapters, dtype.value, kernels.value)
    left = _memory_beside_weights(caps, weight_bytes, adapting.value, dtype.value, quantization.value)
    block_size = _block_size(config)
    attention = _attention_backend(kernels.value, facts, block_size.value)
    speculation = _speculative_method(config, runner.value)
    threads = _num_threads(config, caps)
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
        "enable_prefix_caching": _whole_texts(config.cache.enable_prefix_caching, facts, runner.value),
        "enable_chunked_prefill": _whole_texts(config.scheduler.enable_chunked_prefill, facts, runner.value),
        "kv_cache_bytes": _kv_cache_bytes(config, facts, drafter, left, kv_cache_dtype.value),
        "memory_fraction": _memory_fraction(config),
        "num_threads": threads,
        "pinned_cpus": _pinned_cpus(caps, threads.value, kernels.value),
        "max_steps_in_flight": _max_steps_in_flight(config),
        "kernels": kernels,
        "cpu_isa": _cpu_isa(config, caps, kernels.value),
        "graph_capture": _graph_capture(config, kernels.value),
        "batch_invariant": _batch_invariant(kernels.value, attention.value, facts),
        "runner": runner,
        "speculative_method": speculation,
        **adapters,
        "num_speculative_tokens": _num_speculative_tokens(config, speculation.value, drafter),
        "num_lookahead_tokens": _num_lookahead_tokens(config, speculation.value),
    }
    values = {name: decision.value for name, decision in decisions.items()}
    return Plan(**values, reasons={name: decision.reason for name, decision in decisions.items()})


def _runner(config: EngineConfig, facts: ModelFacts) -> Decision[str]:
    asked = config.model.runner
    if facts.is_encoder:
        if asked == "generate":
            raise ConfigError(f"runner=generate cannot be had: {facts.source_architecture} generates nothing; use auto")
        return Decision("pooling", "an encoder")
    if asked != "auto":
        return Decision(asked, "as asked")
    if facts.pooling is not None:
        return Decision("pooling", "auto: the checkpoint says how it pools")
    return Decision("generate", "auto: a causal language model")


def _adapters(config: EngineConfig, facts: ModelFacts, runner: str) -> dict[str, Decision[int]]:
    asked = config.lora
    if not asked.enable_lora:
        off = Decision(0, "LoRA is off, as asked or by default")
        return {"max_loras": off, "max_cpu_loras": off}
    if runner != "generate" or _is_simulated(config):
        raise ConfigError("enable_lora=True cannot be had: adapters are for models that generate text; leave it out")
    in_memory = asked.max_loras if asked.max_cpu_loras is None else asked.max_cpu_loras
    if in_memory < asked.max_loras:
        raise ConfigError(
            f"max_cpu_loras={in_memory} is below max_loras={asked.max_loras}: all that run are in memory; raise it"
        )
    return {"max_loras": _as_asked(asked.max_loras), "max_cpu_loras": _as_asked(in_memory)}


def _drafter_bytes(config: EngineConfig, drafter: DrafterFacts | None, dtype: str, kernels: str) -> Decision[int]:
    if drafter is None:
        return Decision(0, "no drafter has weights")
    form = _drafter_format(config, drafter, kernels)
    return Decision(weight_bytes_of(drafter.network, dtype, form), "its share of weight_bytes")


def _adapter_bytes(
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


def _whole_texts(asked: bool, facts: ModelFacts, runner: str) -> Decision[bool]:
    """Where every token sees all others, or all are pooled, a text is computed at once and whole."""
    kind = "last" if facts.pooling is None else facts.pooling.kind
    if runner == "pooling" and (facts.is_encoder or kind != "last"):
        return Decision(False, "off: a text is pooled from all of its tokens, computed in one step")
    return _as_asked(asked)


def _as_asked(value: T) -> Decision[T]:
    return Decision(value, "as asked, or the default")


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


def _max_model_len(config: EngineConfig, facts: ModelFacts) -> Decision[int | None]:
    asked = config.model.max_model_len
    if asked is None:
        return Decision(facts.max_position, "the model's own")
    if asked == "auto":
        return Decision(None, "auto: fitted to the KV memory after profiling")
    length = int(asked)
    if length > facts.max_position:
        raise ConfigError(
            f"max_model_len={length} cannot be had: the model has {facts.max_position} positions; "
            f"give at most {facts.max_position}, or leave it out"
        )
    return Decision(length, "as asked")


def _block_size(config: EngineConfig) -> Decision[int | None]:
    if config.cache.block_size is not None:
        return Decision(config.cache.block_size, "as asked")
    return Decision(DEFAULT_BLOCK_SIZE, "default on a CPU")


def _step_budgets(config: EngineConfig, longest: int, is_encoder: bool) -> tuple[Decision[int], Decision[int]]:
    """Tokens and requests per step: each running request needs a token, each whole prompt all of its tokens."""
    asked_tokens, asked_seqs = config.scheduler.max_num_batched_tokens, config.scheduler.max_num_seqs
    _check_threshold(config, longest)
    tokens = _tokens(config, longest, is_encoder)
    if asked_seqs is None:
        if tokens.value >= DEFAULT_MAX_NUM_SEQS:
            return tokens, Decision(DEFAULT_MAX_NUM_SEQS, "default on a CPU")
        reason = f"lowered to max_num_batched_tokens={tokens.value}: each request needs a token"
        return tokens, Decision(tokens.value, reason)
    if tokens.value >= asked_seqs:
        return tokens, Decision(asked_seqs, "as asked")
    if asked_tokens is None:
        raised = Decision(asked_seqs, f"raised to max_num_seqs={asked_seqs}: each request needs a token")
        return raised, Decision(asked_seqs, "as asked")
    raise ConfigError(
        f"max_num_batched_tokens={asked_tokens} is less than max_num_seqs={asked_seqs}: a step could not hold "
        "one token of each request; raise the first or lower the second"
    )


def _check_threshold(config: EngineConfig, longest: int) -> None:
    threshold = config.scheduler.long_prefill_token_threshold
    if threshold > longest:
        raise ConfigError(
            f"long_prefill_token_threshold={threshold} is more than max_model_len={longest} and would do nothing; "
            "lower it, or leave it out"
        )


def _tokens(config: EngineConfig, longest: int, is_encoder: bool) -> Decision[int]:
    asked = config.scheduler.max_num_batched_tokens
    whole_prompts = not config.scheduler.enable_chunked_prefill or is_encoder
    if asked is None:
        if whole_prompts and longest > DEFAULT_MAX_NUM_BATCHED_TOKENS:
            return Decision(longest, f"raised to max_model_len={longest}: prompts are not split over steps")
        return Decision(DEFAULT_MAX_NUM_BATCHED_TOKENS, "default on a CPU")
    if whole_prompts and asked < longest:
        raise ConfigError(
            f"max_num_batched_tokens={asked} is less than max_model_len={longest}, and without chunked prefill a "
            f"prompt must fit into one step; raise it to {longest}, lower max_model_len, or allow chunked prefill"
        )
    return Decision(asked, "as asked")


def _kv_cache_bytes(
    config: EngineConfig, facts: ModelFacts, drafter: DrafterFacts | None, left: int, kv_dtype: str
) -> Decision[int | None]:
    if facts.is_encoder:
        return Decision(0, "an encoder keeps nothing")
    if config.cache.kv_cache_memory_bytes is not None:
        return Decision(config.cache.kv_cache_memory_bytes, "as asked")
    if config.cache.gpu_memory_utilization is not None:
        return Decision(None, "learnt from profiling: the share gpu_memory_utilization asks for, less what is used")
    longest = _longest_request_bytes(config, facts, kv_dtype)
    if drafter is not None:
        longest += _longest_request_bytes(config, _without_windows(drafter.network, facts.max_position), kv_dtype)
    wanted = DEFAULT_NUM_LONG_REQUESTS * longest
    most = left // 2
    what = "the weights and adapters" if config.lora.enable_lora else "the weights"
    if max(wanted, MIN_DEFAULT_KV_BYTES) > most:
        return Decision(most, f"default: half of the {format_byte_size(left)} that {what} leave")
    if wanted < MIN_DEFAULT_KV_BYTES:
        return Decision(MIN_DEFAULT_KV_BYTES, f"default: at least {format_byte_size(MIN_DEFAULT_KV_BYTES)}")
    return Decision(wanted, f"default: {DEFAULT_NUM_LONG_REQUESTS} requests of the longest length")


def _longest_request_bytes(config: EngineConfig, facts: ModelFacts, kv_dtype: str) -> int:
    """KV bytes of one request of the greatest length, rounded up to blocks; a windowed layer keeps its window only."""
    asked = config.model.max_model_len
    length = asked if isinstance(asked, int) else facts.max_position
    block = config.cache.block_size or DEFAULT_BLOCK_SIZE
    shape = {"num_kv_heads": facts.num_kv_heads, "head_size": facts.head_size}
    token = FullAttentionSpec(block_size=1, dtype=kv_dtype, **shape)
    tokens = sum(min(length, _kept_tokens(facts, kind, length)) + block for kind in _layer_types(facts))
    return tokens * token.natural_page_bytes


def _without_windows(facts: ModelFacts, max_position: int) -> ModelFacts:
    """A drafter keeps every token that its model keeps."""
    return msgspec.structs.replace(facts, layer_types=(), max_position=max_position)


def _layer_types(facts: ModelFacts) -> tuple[str, ...]:
    return facts.layer_types or ("full",) * facts.num_layers


def _kept_tokens(facts: ModelFacts, kind: str, length: int) -> int:
    """Tokens a layer holds at most; while a chunk is computed, a window reaches back from its first token."""
    reach = {"sliding_window": facts.sliding_window, "chunked_local": facts.chunk_size}.get(kind)
    return length if reach is None else reach + DEFAULT_MAX_NUM_BATCHED_TOKENS


def _memory_beside_weights(
    caps: DeviceCaps, weight_bytes: int, adapter_bytes: int, dtype: str, quantization: str
) -> int:
    needed = weight_bytes + adapter_bytes
    if needed < caps.available_bytes:
        return caps.available_bytes - needed
    smaller = "; dtype=bfloat16 halves it" if (dtype, quantization) == ("float32", "none") else ""
    form = dtype if quantization == "none" else quantization
    adapters, fewer = "", ""
    if adapter_bytes:
        adapters = f" and {format_byte_size(adapter_bytes)} for LoRA adapters"
        fewer = "lower max_cpu_loras or max_lora_rank, "
    raise InsufficientMemoryError(
        f"the weights need {format_byte_size(weight_bytes)} in {form}{adapters}, and "
        f"{format_byte_size(caps.available_bytes)} of memory are available to this process (the least of free memory, "
        f"cgroup and ulimit){smaller}; {fewer}free memory, raise the limit, or take a smaller model",
        needed_bytes=needed,
        available_bytes=caps.available_bytes,
    )


def _memory_fraction(config: EngineConfig) -> Decision[float | None]:
    asked = config.cache.gpu_memory_utilization
    if asked is None:
        return Decision(None, "not asked: KV memory is given in bytes")
    if config.cache.kv_cache_memory_bytes is not None:
        return Decision(None, "kv_cache_memory_bytes is exact and goes before gpu_memory_utilization")
    return Decision(asked, "as asked")


def _num_threads(config: EngineConfig, caps: DeviceCaps) -> Decision[int]:
    asked = config.parallel.num_threads
    if asked is None:
        return Decision(caps.num_threads, "the CPUs that affinity and cgroup quota leave us")
    more = f"; more than the {caps.num_threads} CPUs we may use" if asked > caps.num_threads else ""
    return Decision(asked, "as asked" + more)


def _pinned_cpus(caps: DeviceCaps, num_threads: int, kernels: str) -> Decision[tuple[int, ...]]:
    if kernels != "native":
        return Decision((), "the threads are torch's")
    if not caps.exclusive_cpus:
        return Decision((), "others may run on the same CPUs")
    if num_threads > len(caps.exclusive_cpus):
        return Decision((), f"{num_threads} threads on {len(caps.exclusive_cpus)} CPUs")
    return Decision(caps.exclusive_cpus[:num_threads], "the CPUs are ours alone")


def _max_steps_in_flight(config: EngineConfig) -> Decision[int]:
    if not config.scheduler.async_scheduling:
        return Decision(1, "each step is planned when the one before is done")
    backend = config.parallel.distributed_executor_backend
    if _MAX_STEPS_IN_FLIGHT[backend] < 2:
        raise ConfigError(
            f"async_scheduling=True cannot be had with distributed_executor_backend={backend}, which runs one step at "
            "a time; leave it out"
        )
    return Decision(2, "async_scheduling: the next step is planned while one runs")


def _kernels(config: EngineConfig, caps: DeviceCaps, dtype: str) -> Decision[str]:
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


def _cpu_isa(config: EngineConfig, caps: DeviceCaps, kernels: str) -> Decision[str]:
    asked = config.parallel.cpu_isa
    usable = [name for name, needed in NATIVE_ISAS.items() if needed.issubset(caps.isa)]
    if asked != "auto" and asked not in usable:
        raise ConfigError(f"cpu_isa={asked} cannot be had: {caps.name} can use {', '.join(usable)}; use one, or auto")
    if kernels != "native":
        return Decision("none", "no native kernels are used")
    if asked == "auto":
        return Decision(usable[-1], "auto: the highest that kernels and CPU have")
    return Decision(asked, "as asked")


def _attention_backend(kernels: str, facts: ModelFacts, block_size: int | None) -> Decision[str]:
    if kernels != "native":
        return Decision("reference", "plain torch, as the other kernels are")
    if facts.head_size % NATIVE_HEAD_SIZE_MULTIPLE:
        multiple = f"multiples of {NATIVE_HEAD_SIZE_MULTIPLE}"
        return Decision("reference", f"native attention takes head sizes that are {multiple}, not {facts.head_size}")
    if (block_size or 0) % NATIVE_BLOCK_SIZE_MULTIPLE:
        multiple = f"multiples of {NATIVE_BLOCK_SIZE_MULTIPLE}"
        return Decision("reference", f"native attention takes block sizes that are {multiple}, not {block_size}")
    return Decision("cpu", "native kernels")


def _graph_capture(config: EngineConfig, kernels: str) -> Decision[bool]:
    if config.model.enforce_eager:
        return Decision(False, "enforce_eager, as asked")
    if kernels != "native":
        return Decision(False, "there is nothing to capture: ops run on plain torch")
    return Decision(True, "a step of native kernels can be one call")


def _batch_invariant(kernels: str, attention: str, facts: ModelFacts) -> Decision[bool]:
    if kernels != "native":
        return Decision(False, "no, because ops run on plain torch, whose kernels change with the number of rows")
    needed = ENCODER_OPS if facts.is_encoder else MODEL_OPS
    own = CACHE_OPS if attention == "reference" and not facts.is_encoder else frozenset()
    missing = sorted((needed - NATIVE_OPS) | own)
    if missing:
        return Decision(False, f"no, because {', '.join(missing)} on plain torch")
    return Decision(True, "yes: every op has a native kernel that gives a row the same bits among any others")


def _is_simulated(config: EngineConfig) -> bool:
    return config.parallel.distributed_executor_backend == "simulated" or config.load.load_format == "mock"


def _speculative_method(config: EngineConfig, runner: str) -> Decision[str]:
    asked = config.speculation
    check_speculative_model(asked)
    if asked.speculative_method == "none":
        return Decision("none", "default: each step brings a token")
    method = f"speculative_method={asked.speculative_method}"
    if _is_simulated(config):
        raise ConfigError(f"{method} cannot be had with a simulated model, which drafts nothing; drop it")
    if runner != "generate":
        raise ConfigError(f"{method} cannot be had with a pooling model, which says no tokens; drop it")
    if asked.speculative_method != "ngram":
        return Decision(asked.speculative_method, f"as asked: {asked.speculative_model} drafts")
    if asked.prompt_lookup_min > asked.prompt_lookup_max:
        raise ConfigError(
            f"prompt_lookup_min={asked.prompt_lookup_min} is above prompt_lookup_max={asked.prompt_lookup_max}: lower "
            "it, or raise the other"
        )
    lengths = f"{asked.prompt_lookup_min} to {asked.prompt_lookup_max}"
    return Decision(asked.speculative_method, f"as asked: drafts follow {lengths} tokens that were said before")


def _num_speculative_tokens(config: EngineConfig, method: str, drafter: DrafterFacts | None) -> Decision[int]:
    if method == "none":
        return Decision(0, "nothing is drafted")
    asked = config.speculation.num_speculative_tokens
    if drafter is not None and 0 < drafter.num_heads < asked:
        return Decision(drafter.num_heads, "a token for each of its heads")
    return Decision(config.speculation.num_speculative_tokens, "as asked, or the default")


def _num_lookahead_tokens(config: EngineConfig, method: str) -> Decision[int]:
    if method not in DRAFTERS_WITH_CACHE:
        return Decision(0, "no drafter has keys and values")
    return Decision(config.speculation.num_speculative_tokens, "a place for the keys and values of each draft")


def check_speculative_model(asked: SpeculationConfig) -> None:
    """Raise ConfigError where a method has no model that it needs, or a model no method that it is for."""
    method, model = asked.speculative_method, asked.speculative_model
    if method in ("none", "ngram") and model is not None:
        raise ConfigError(
            f"speculative_model={model} drafts nothing with speculative_method={method}: say draft_model, or drop it"
        )
    if method not in ("none", "ngram") and model is None:
        raise ConfigError(f"speculative_method={method} needs a speculative_model: name one, or take ngram")


def _drafter_format(config: EngineConfig, drafter: DrafterFacts, kernels: str) -> str:
    """How its weights are held: as was asked for the model's, where its files allow that."""
    if config.model.quantization == "gguf" and drafter.network.weight_format != "gguf":
        return "none"
    return quantization_of(config, drafter.network, kernels)[0]


def plan_drafter(config: EngineConfig, plan: Plan, model: ModelFacts, drafter: DrafterFacts) -> Plan:
    """The Plan of a model for its drafter: what differs is how weights are held, and who computes attention."""
    return msgspec.structs.replace(
        plan,
        quantization=_drafter_format(config, drafter, plan.kernels),
        attention_backend=_attention_backend(plan.kernels, drafter.network, plan.block_size).value,
        max_model_len=plan.max_model_len or model.max_position,
    )
