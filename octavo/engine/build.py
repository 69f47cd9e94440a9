"""From a config to a running engine: the only file of this layer that looks at options to choose classes.

``build_engine_core`` is the start-up of docs/steps.md in order, each phase with its seconds. What runs
workers, and the front end of an LLMEngine, are named in tables and loaded when asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from octavo.checkpoint.drafter import DrafterFiles, check_vocabularies, read_drafter
from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.generation_config import end_token_ids, read_generation_config
from octavo.checkpoint.resolve import Checkpoint, resolve_model
from octavo.config.engine_config import EngineConfig
from octavo.config.flat import non_default
from octavo.control.kv.block_hash import make_block_hasher
from octavo.control.kv.manager import KVCacheManager
from octavo.control.kv.planning import KVCacheLimits, RankNeeds, plan_kv_cache
from octavo.control.scheduler.adapter_gate import AdapterGate
from octavo.control.scheduler.limits import SchedulerLimits
from octavo.control.scheduler.scheduler import Scheduler
from octavo.control.structured_output.grammar import GrammarBackend
from octavo.control.structured_output.manager import NoStructuredOutput, StructuredOutput, StructuredOutputManager
from octavo.device.platform.detect import detect_caps
from octavo.device.platform.torch_import import complete_torch
from octavo.engine.core import EngineCore
from octavo.engine.info import EngineInfo
from octavo.engine.interrupts import deferred_interrupts
from octavo.engine.phases import Phases
from octavo.engine.plugins import load_plugins
from octavo.engine.simulated_model import SIMULATED_FACTS, SIMULATED_MODEL, token_function
from octavo.engine.step_watch import NoStepWatch, StepWatch
from octavo.executor.protocol import Executor
from octavo.plan.executor import executor_backend
from octavo.plan.kv_specs import kv_cache_specs
from octavo.plan.plan import Plan
from octavo.plan.planner import make_plan
from octavo.plan.speculation import check_speculative_model
from octavo.util.lazy import resolve
from octavo.words.errors import ConfigError
from octavo.words.kv_cache_spec import KVCacheConfig
from octavo.words.model_facts import ModelFacts

if TYPE_CHECKING:
    from octavo.tokenizer.tokenizer import Tokenizer

EXECUTORS = {
    "uni": "octavo.executor.uniproc:UniProcExecutor",
    "simulated": "octavo.executor.simulated:SimulatedExecutor",
}
TOKENIZER_LOADER = "octavo.frontend.load_tokenizer:load_tokenizer"
GRAMMAR_BACKENDS = {"llguidance": "octavo.control.structured_output.backends.llguidance:LLGuidanceBackend"}
WORKER_BUILDER = "octavo.device.worker.build:build_worker"
ONE_BY_ONE = ("draft_model", "eagle")
GIB = 1 << 30

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KnownModel:
    """What is asked, known and decided about the model before anything is loaded.

    ``checkpoint`` None: no files. ``drafter`` None: no second one drafts.
    """

    config: EngineConfig
    checkpoint: Checkpoint | None
    facts: ModelFacts
    plan: Plan
    drafter: DrafterFiles | None = None


def build_engine_core(
    config: EngineConfig, *, incarnation: int = 0, watch: StepWatch | None = None
) -> tuple[EngineCore, EngineInfo]:
    """Start an engine core. Raises what makes a start impossible, with nothing left running."""
    phases = Phases()
    logger.info("non-default args: %s", non_default(config))
    parts = _decide(config, phases)
    with phases("plugins"):
        load_plugins(config.observability.plugins)
    executor = STARTERS[executor_backend(config)](parts, phases)
    watch = watch or NoStepWatch()
    try:
        kv_cache_config = _give_memory(executor, parts, phases)
        with phases("warm up"):
            graph = executor.warm_up()
        with phases("scheduler"):
            core = _assemble(executor, parts, kv_cache_config, incarnation, watch)
    except BaseException:
        executor.shutdown()
        raise
    info = EngineInfo(
        facts=parts.facts,
        plan=parts.plan,
        kv_cache_config=kv_cache_config,
        phases=phases.seconds,
        graph=graph,
        incarnation=incarnation,
    )
    _log_capacity(info, phases)
    return core, info


def _decide(config: EngineConfig, phases: Phases) -> KnownModel:
    with phases("read headers"):
        checkpoint = find_checkpoint(config)
        facts = _facts(config, checkpoint)
        drafter = _drafter(config, checkpoint, facts)
    with phases("plan"):
        caps = detect_caps(config.parallel.device)
        plan = make_plan(config, facts, caps, None if drafter is None else drafter.facts)
    if not caps.has_native:
        logger.warning("octavo._native is not installed: every operation runs on plain torch")
    on_torch = plan.kernels == "native" and plan.attention_backend == "reference"
    if on_torch and not facts.is_encoder and executor_backend(config) != "simulated":
        logger.warning("Attention is slow: %s", plan.reasons["attention_backend"])
    for line in plan.explained():
        logger.debug("Plan: %s", line)
    return KnownModel(config=config, checkpoint=checkpoint, facts=facts, plan=plan, drafter=drafter)


def find_drafter(config: EngineConfig, facts: ModelFacts) -> DrafterFiles | None:
    """What drafts for a model of files, if that has files."""
    check_speculative_model(config.speculation)
    name = config.speculation.speculative_model
    if name is None:
        return None
    method, load_format = config.speculation.speculative_method, config.load.load_format
    return read_drafter(name, method, facts, download_dir=config.load.download_dir, load_format=load_format)


def _drafter(config: EngineConfig, checkpoint: Checkpoint | None, facts: ModelFacts) -> DrafterFiles | None:
    """``find_drafter``. Raises ConfigError unless a model's vocabulary is this one's, token by token."""
    if checkpoint is None:
        check_speculative_model(config.speculation)
        return None
    drafter = find_drafter(config, facts)
    if drafter is None or config.speculation.speculative_method != "draft_model":
        return drafter
    ours = _token_names(find_tokenizer(config, checkpoint))
    check_vocabularies(ours, _token_names(drafter.checkpoint), drafter, facts)
    return drafter


def _token_names(checkpoint: Checkpoint) -> list[str] | None:
    """The vocabulary in order of id, None where the files bring none."""
    if checkpoint.kind == "hf" and not (checkpoint.path / "tokenizer.json").is_file():
        return None
    tokenizer: Tokenizer = resolve(TOKENIZER_LOADER)(checkpoint)
    return [tokenizer.convert_id_to_token(token_id) for token_id in range(tokenizer.num_text_tokens)]


def _facts(config: EngineConfig, checkpoint: Checkpoint | None) -> ModelFacts:
    if checkpoint is None:
        return SIMULATED_FACTS
    return read_model_facts(checkpoint, load_format=config.load.load_format)


def find_checkpoint(config: EngineConfig) -> Checkpoint | None:
    """The files of the model; None for the model of no files that a simulated executor can serve."""
    if config.parallel.distributed_executor_backend == "simulated" and config.model.model == SIMULATED_MODEL:
        return None
    return resolve_model(config.model.model, revision=config.model.revision, download_dir=config.load.download_dir)


def find_tokenizer(config: EngineConfig, model: Checkpoint | None) -> Checkpoint:
    """The files of the tokenizer: those asked for, or the model's."""
    if config.model.tokenizer:
        return resolve_model(config.model.tokenizer, download_dir=config.load.download_dir)
    if model is None:
        raise ConfigError(f"model {config.model.model!r} has no tokenizer; name another model's with tokenizer=...")
    return model


def _start_uni(parts: KnownModel, phases: Phases) -> Executor:
    with phases("init worker"):
        if _runs_code_of_users(parts.config):
            complete_torch()
        with deferred_interrupts():  # half an import of torch cannot be taken up again
            build_worker = resolve(WORKER_BUILDER)
        worker = build_worker(parts.config, parts.plan, parts.facts, parts.checkpoint, parts.drafter)
        worker.init_device()
    with phases("load weights"):
        report = worker.load_model()
    logger.info(
        "Loading weights took %.2f seconds: %d tensors, %.2f GiB as stored",
        report.seconds,
        report.num_tensors,
        report.bytes / GIB,
    )
    logger.info(
        "Model loading took %.2f GiB memory and %.2f seconds",
        parts.plan.weight_bytes / GIB,
        phases.seconds["load weights"],
    )
    executor: Executor = resolve(EXECUTORS["uni"])(worker)
    return executor


def _runs_code_of_users(config: EngineConfig) -> bool:
    asked = (config.parallel.worker_cls, config.parallel.worker_extension_cls, config.model.logits_processors)
    return any(asked)


def _start_simulated(parts: KnownModel, phases: Phases) -> Executor:
    with phases("init worker"):
        executor: Executor = resolve(EXECUTORS["simulated"])(
            kv_cache_specs(parts.facts, parts.plan),
            next_token=token_function(parts.facts.vocab_size),
            max_steps_in_flight=parts.plan.max_steps_in_flight,
            available_bytes=parts.plan.kv_cache_bytes or GIB,
            check=False,
        )
    return executor


STARTERS: dict[str, Callable[[KnownModel, Phases], Executor]] = {"uni": _start_uni, "simulated": _start_simulated}


def _give_memory(executor: Executor, parts: KnownModel, phases: Phases) -> KVCacheConfig:
    config, plan = parts.config, parts.plan
    with phases("profile"):
        rank = RankNeeds(
            specs=executor.get_kv_cache_specs(),
            available_bytes=executor.determine_available_memory(),
            shared_layers=executor.shared_layers(),
            drafter_specs=executor.drafter_kv_cache_specs(),
        )
    logger.info("Available KV cache memory: %.2f GiB", rank.available_bytes / GIB)
    with phases("plan kv cache"):
        limits = KVCacheLimits(
            max_model_len=plan.max_model_len,
            model_max_len=parts.facts.max_position,
            max_num_batched_tokens=plan.max_num_batched_tokens * plan.max_steps_in_flight,
            block_size=plan.block_size,
            preferred_block_sizes=executor.preferred_block_sizes(),
            num_blocks_override=config.cache.num_gpu_blocks_override,
            enable_caching=plan.enable_prefix_caching,
            disable_hybrid=config.cache.disable_hybrid_kv_cache_manager,
        )
        kv_cache_config = plan_kv_cache(rank, limits)
    with phases("create kv cache"):
        executor.initialize_from_config(kv_cache_config)
    return kv_cache_config


def _assemble(
    executor: Executor, parts: KnownModel, kv_cache_config: KVCacheConfig, incarnation: int, watch: StepWatch
) -> EngineCore:
    config, plan = parts.config, parts.plan
    manager = KVCacheManager(
        kv_cache_config,
        enable_caching=plan.enable_prefix_caching,
        max_num_batched_tokens=plan.max_num_batched_tokens * plan.max_steps_in_flight,
    )
    limits = SchedulerLimits(
        max_num_seqs=plan.max_num_seqs,
        max_num_batched_tokens=plan.max_num_batched_tokens,
        max_model_len=kv_cache_config.max_model_len,
        enable_chunked_prefill=plan.enable_chunked_prefill,
        long_prefill_token_threshold=config.scheduler.long_prefill_token_threshold,
        policy=config.scheduler.scheduling_policy,
        watermark=config.scheduler.watermark,
        max_steps_in_flight=plan.max_steps_in_flight,
        max_step_seconds=config.scheduler.max_step_ms / 1e3,
        max_burst_seconds=config.scheduler.max_burst_ms / 1e3,
        num_lookahead_tokens=plan.num_lookahead_tokens,
        num_draft_tokens=plan.num_speculative_tokens,
        drafts_one_by_one=plan.speculative_method in ONE_BY_ONE,
        drafter_catches_up=plan.speculative_method == "draft_model",
        drafter_looks_back=plan.speculative_method == "ngram",
        adapt_drafts=config.speculation.adaptive_speculation,
    )
    hasher = make_block_hasher(kv_cache_config.hash_block_size) if plan.enable_prefix_caching else None
    structured_output = _structured_output(parts)
    return EngineCore(
        executor,
        Scheduler(limits, manager, gates=(structured_output, AdapterGate(plan.max_loras))),
        hasher,
        depth=plan.max_steps_in_flight,
        incarnation=incarnation,
        watch=watch,
        structured_output=structured_output,
    )


def _structured_output(parts: KnownModel) -> StructuredOutput:
    if parts.checkpoint is None:
        return NoStructuredOutput()
    return StructuredOutputManager(partial(_grammar_backend, parts.config, parts.checkpoint, parts.facts))


def _grammar_backend(config: EngineConfig, checkpoint: Checkpoint, facts: ModelFacts) -> GrammarBackend:
    """Loaded with the first constrained request, on the thread that compiles grammars."""
    tokenizer = resolve(TOKENIZER_LOADER)(find_tokenizer(config, checkpoint))
    ends = end_token_ids(read_generation_config(checkpoint), facts, tokenizer.eos_token_id)
    backend: GrammarBackend = resolve(GRAMMAR_BACKENDS["llguidance"])(tokenizer, ends)
    return backend


def _log_capacity(info: EngineInfo, phases: Phases) -> None:
    logger.info("Using max model len %d", info.max_model_len)
    if info.num_kv_tokens:  # an encoder has no cache
        logger.info(
            "%s KV cache size: %s tokens, Maximum concurrency for %s tokens per request: %.2fx",
            info.plan.device.upper(),
            f"{info.num_kv_tokens:,}",
            f"{info.max_model_len:,}",
            info.max_concurrency,
        )
    seconds = phases.sum("profile", "plan kv cache", "create kv cache", "warm up")
    logger.info("init engine (profile, create kv cache, warmup model) took %.2f s", seconds)
    logger.info("Start-up phases: %s", ", ".join(f"{name} {took:.3f} s" for name, took in phases.seconds.items()))
