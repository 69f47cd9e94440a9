"""Composition of the device plane: the only file that looks at options to choose classes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from octavo.checkpoint.adapter import projection_shapes
from octavo.checkpoint.drafter import DrafterFiles
from octavo.checkpoint.resolve import Checkpoint
from octavo.config.engine_config import EngineConfig
from octavo.device.attention.backend import AttentionNeeds
from octavo.device.attention.select import select_backend
from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.layers.quantization.native_dense import NativeDense
from octavo.device.layers.quantization.native_quantized import NativeQuantized
from octavo.device.layers.quantization.unquantized import UNQUANTIZED
from octavo.device.lora.adapters import Adapters, NoAdapters
from octavo.device.lora.attach import attach
from octavo.device.lora.load import AdapterLoader
from octavo.device.lora.slots import NO_ADAPTER, SlotAdapters
from octavo.device.lora.store import AdapterStore
from octavo.device.models.build import build_model
from octavo.device.models.eagle import EagleHead
from octavo.device.models.medusa import MedusaHeads
from octavo.device.models.options import ModelOptions
from octavo.device.ops.kernels import Kernels, load_kernels, with_reference
from octavo.device.ops.lora import AdapterSlots, DenseSlots
from octavo.device.ops.native.lora import PackedSlots
from octavo.device.sample.chooser import TorchChooser
from octavo.device.sample.custom_processors import load_custom_processors
from octavo.device.sample.grammar_mask import GrammarMask, native_mask_tokens
from octavo.device.sample.native_chooser import NativeChooser
from octavo.device.sample.prompt_logprobs import PromptLogprobs
from octavo.device.sample.sampler import Sampler, builtin_processors
from octavo.device.sample.verification import ExactMatch, Proposals, RejectionSampling
from octavo.device.spec_decode.draft_model import DraftModel
from octavo.device.spec_decode.drafter import Drafter, NoDrafter
from octavo.device.spec_decode.eagle import EagleDrafter
from octavo.device.spec_decode.medusa import MedusaDrafter
from octavo.device.spec_decode.ngram import NgramDrafter
from octavo.device.spec_decode.sampler import CoupledSampler, DraftSampler, IndependentSampler
from octavo.device.worker.decode_loop import NativeDecodeLoop
from octavo.device.worker.draft_steps import DraftSteps, EagleSteps, FollowingCache, FollowingSteps
from octavo.device.worker.graphs import StepGraphs
from octavo.device.worker.head import SamplingHead
from octavo.device.worker.memory import PROFILED_TOKENS
from octavo.device.worker.model_runner import ModelRunner
from octavo.device.worker.pooling_head import PoolingHead
from octavo.plan.native_ops import CACHE_OPS
from octavo.plan.plan import Plan
from octavo.plan.speculation import plan_drafter
from octavo.util.lazy import resolve
from octavo.words.drafter_facts import DrafterFacts
from octavo.words.errors import ConfigError
from octavo.words.model_facts import ModelFacts

# What linear layers and what the vocabulary are quantised to by the Plan's name; None: as a GGUF file stores them.
QUANTIZED_FORMATS = {"gguf": (None, None), "int8": ("int8", "int8"), "int4": ("Q4_1", "int8")}
MOST_CAPTURED_ROWS = 64
logger = logging.getLogger(__name__)

WORKER = "octavo.device.worker.worker:Worker"


def build_worker(
    config: EngineConfig, plan: Plan, facts: ModelFacts, checkpoint: Checkpoint, drafter: DrafterFiles | None = None
) -> Any:
    """The worker of this process, the user's class if ``worker_cls`` names one; nothing is loaded yet.

    Raises ConfigError for a class that is not there.
    """
    worker_class = _class("worker_cls", config.parallel.worker_cls or WORKER)
    if drafter is None:
        return worker_class(config, plan, facts, checkpoint)
    return worker_class(config, plan, facts, checkpoint, drafter)


def build_extension(config: EngineConfig, worker: object) -> Any | None:
    """The user's ``worker_extension_cls``, made with the worker it extends; None if there is none."""
    name = config.parallel.worker_extension_cls
    return _class("worker_extension_cls", name)(worker) if name else None


def build_kernels(plan: Plan) -> Kernels:
    """The ops of the Plan's backend, with the threads they run on."""
    return load_kernels(plan.kernels, plan.num_threads, plan.cpu_isa, plan.pinned_cpus)


def build_empty_model(plan: Plan, facts: ModelFacts, kernels: Kernels) -> nn.Module:
    """The model with the Plan's dtype and attention backend, its weights not yet loaded."""
    return build_model(facts, _model_options(plan, facts, kernels))


def build_empty_drafter(
    config: EngineConfig, plan: Plan, facts: ModelFacts, drafter: DrafterFacts, model: nn.Module, kernels: Kernels
) -> nn.Module:
    """The network that drafts for a model, its weights not yet loaded."""
    options = _model_options(plan_drafter(config, plan, facts, drafter), drafter.network, kernels)
    if plan.speculative_method == "eagle":
        return EagleHead(drafter, options, model.embed)
    if plan.speculative_method == "medusa":
        return MedusaHeads(drafter, options)
    return build_model(drafter.network, options)


def _model_options(plan: Plan, facts: ModelFacts, kernels: Kernels) -> ModelOptions:
    needs = AttentionNeeds(
        device=plan.device,
        head_size=facts.head_size,
        dtype=plan.dtype,
        kv_cache_dtype=plan.kv_cache_dtype,
        block_size=plan.block_size,
        sliding_window="sliding_window" in facts.layer_types,
        chunked_local="chunked_local" in facts.layer_types,
        softcap=facts.attn_logit_softcap is not None,
    )
    attention = select_backend(plan.attention_backend, needs, kernels.native)
    if not attention.support.needs_native:
        kernels = with_reference(kernels, CACHE_OPS)
    return ModelOptions(
        dtype=getattr(torch, plan.dtype),
        kv_cache_dtype=getattr(torch, plan.kv_cache_dtype),
        max_model_len=plan.max_model_len or facts.max_position,
        attention=attention,
        kernels=kernels,
        has_head=plan.runner != "pooling",
        **_weight_formats(plan, kernels),
    )


def build_following_steps(
    plan: Plan, facts: ModelFacts, drafter: DrafterFacts, network: nn.Module, model: nn.Module, kernels: Kernels
) -> FollowingSteps | None:
    """What runs a loaded drafter that keeps keys and values; None for one that keeps none."""
    if not plan.num_lookahead_tokens:
        return None
    cache = FollowingCache(
        network,
        vocab_size=drafter.network.vocab_size,
        max_num_requests=plan.max_num_seqs,
        max_num_tokens=_max_num_tokens(plan),
    )
    if plan.speculative_method == "eagle":
        return EagleSteps(cache, network, model.compute_logits)
    return DraftSteps(cache, StepGraphs(network, kernels, plan.max_num_seqs), vocab_size=facts.vocab_size)


def build_model_runner(
    config: EngineConfig,
    plan: Plan,
    facts: ModelFacts,
    model: nn.Module,
    kernels: Kernels,
    adapters: Adapters,
    network: nn.Module | None = None,
    steps: FollowingSteps | None = None,
) -> ModelRunner:
    """The runner of a loaded model, with what ends its steps: a sampler, or a pooler.

    ``network`` is a drafter's, and ``steps`` what runs it if it keeps keys and values.
    """
    graphs = StepGraphs(model, kernels, _max_logit_rows(plan))
    run_with = partial(
        ModelRunner,
        model,
        graphs,
        max_num_requests=plan.max_num_seqs,
        max_num_tokens=_max_num_tokens(plan),
        adapters=adapters,
    )
    if plan.runner == "pooling":
        pooler = PoolingHead(model, facts.pooling, num_labels=facts.num_labels)
        return run_with(pooler, (pooler,))
    chooser = TorchChooser() if kernels.native is None else NativeChooser(kernels.native)
    grammar_mask = GrammarMask() if kernels.native is None else GrammarMask(native_mask_tokens(kernels.native))
    proposals = Proposals()
    by_rejection = config.speculation.speculative_verification == "rejection"
    custom = load_custom_processors(config.model.logits_processors, facts.vocab_size)
    sampler = Sampler(
        plan.max_num_seqs,
        builtin_processors(facts.vocab_size, custom, grammar_mask),
        processed_logprobs=config.model.logprobs_mode == "processed_logprobs",
        chooser=chooser,
        verification=RejectionSampling(proposals) if by_rejection else ExactMatch(),
    )
    prompt_logprobs = PromptLogprobs(chooser)
    guessing = IndependentSampler(sampler, proposals) if by_rejection else CoupledSampler(sampler)
    drafter = _drafter(config, plan, network, steps, guessing)
    has_loop = kernels.native is not None and not drafter.sees_all_steps
    loop = NativeDecodeLoop(kernels.native, graphs, sampler) if has_loop else None
    head = SamplingHead(graphs, sampler, prompt_logprobs, facts.vocab_size, drafter, loop)
    return run_with(head, (sampler, prompt_logprobs, drafter, proposals), drafter_steps=steps)


def build_adapters(config: EngineConfig, plan: Plan, facts: ModelFacts, model: nn.Module, kernels: Kernels) -> Adapters:
    """What keeps LoRA adapters, with slots for them on the layers of a loaded model."""
    if not plan.max_loras:
        return NoAdapters()
    dtype, native, num_slots = getattr(torch, plan.dtype), kernels.native, plan.max_loras
    kept_as = None if config.lora.lora_dtype == "auto" else getattr(torch, config.lora.lora_dtype)

    def make_slots(in_features: int, part_sizes: Sequence[int]) -> AdapterSlots:
        if native is None:
            return DenseSlots(num_slots, in_features, part_sizes, dtype, kept_as)
        return PackedSlots(native, num_slots, in_features, part_sizes, dtype, kept_as)

    row_slots = torch.full((_max_num_tokens(plan),), NO_ADAPTER, dtype=torch.int32)
    layers = attach(model, row_slots, make_slots)
    loader = AdapterLoader(layers, projection_shapes(facts), config.lora.max_lora_rank)
    store = AdapterStore(loader, plan.max_cpu_loras)
    return SlotAdapters(layers, store, row_slots, num_slots=num_slots, max_num_requests=plan.max_num_seqs)


def _max_num_tokens(plan: Plan) -> int:
    return max(plan.max_num_batched_tokens, PROFILED_TOKENS)


def _drafter(
    config: EngineConfig,
    plan: Plan,
    network: nn.Module | None,
    steps: FollowingSteps | None,
    sampler: DraftSampler,
) -> Drafter:
    asked = config.speculation
    if isinstance(network, MedusaHeads):
        return MedusaDrafter(list(network.heads), sampler)
    if isinstance(steps, EagleSteps):
        return EagleDrafter(steps, sampler)
    if isinstance(steps, DraftSteps):
        return DraftModel(steps, sampler)
    if plan.speculative_method == "none":
        return NoDrafter()
    return NgramDrafter(asked.prompt_lookup_min, asked.prompt_lookup_max)


def _max_logit_rows(plan: Plan) -> int:
    """Rows that a captured output head takes: all requests with a token each, and few of them with all their drafts."""
    if plan.runner == "pooling":
        return 0
    with_drafts = plan.max_num_seqs * (1 + plan.num_speculative_tokens)
    return max(plan.max_num_seqs, min(with_drafts, MOST_CAPTURED_ROWS))


def _weight_formats(plan: Plan, kernels: Kernels) -> dict[str, QuantMethod]:
    """Formats of linear layers, of the output head, and of an embedding that is not the head's too."""
    names = ("quantization", "head_quantization", "embedding_quantization")
    native = kernels.native
    if native is None:
        return dict.fromkeys(names, UNQUANTIZED)
    if plan.quantization == "none":
        return dict(zip(names, (NativeDense(native), NativeDense(native), UNQUANTIZED), strict=True))
    logger.info("Weights are held as %s: %s", plan.quantization, plan.reasons["quantization"])
    linear, vocab = QUANTIZED_FORMATS[plan.quantization]
    of_vocab = NativeQuantized(native, plan.quantization, vocab)
    return dict(zip(names, (NativeQuantized(native, plan.quantization, linear), of_vocab, of_vocab), strict=True))


def _class(option: str, name: str) -> Any:
    try:
        return resolve(name)
    except (ValueError, ImportError, AttributeError) as error:
        raise ConfigError(f'{option}={name!r} cannot be loaded: {error}. Give "module:Class".') from error
