"""The worker: owns the model and its memory on one device, and does what the executor asks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

from torch import nn

from octavo.checkpoint.drafter import DrafterFiles
from octavo.checkpoint.resolve import Checkpoint
from octavo.config.engine_config import EngineConfig
from octavo.device.layers.attention import attention_layers
from octavo.device.loader.load import LoadReport, load_weights
from octavo.device.ops.kernels import Kernels
from octavo.device.platform.detect import detect_caps
from octavo.device.worker.build import (
    build_adapters,
    build_empty_drafter,
    build_empty_model,
    build_extension,
    build_following_steps,
    build_kernels,
    build_model_runner,
)
from octavo.device.worker.draft_steps import FollowingSteps
from octavo.device.worker.dummy import dummy_end, dummy_kv_cache_config, dummy_step
from octavo.device.worker.memory import PROFILED_TOKENS, parameter_bytes, step_bytes
from octavo.device.worker.model_runner import Step
from octavo.device.worker.threads import TorchThreads
from octavo.plan.plan import Plan
from octavo.util.byte_size import format_byte_size
from octavo.util.spans import NO_SPANS, Span, SpanRecorder
from octavo.words.errors import InsufficientMemoryError, UnsupportedError
from octavo.words.graph_report import GraphReport
from octavo.words.kv_cache_spec import AnyKVCacheSpec, KVCacheConfig
from octavo.words.lora import Adapter
from octavo.words.messages import GrammarMasks, ModelRunnerOutput, SchedulerOutput
from octavo.words.model_facts import ModelFacts

EXTENSION_PREFIX = "extension."

logger = logging.getLogger(__name__)


class Worker:
    """One device's half of the engine.

    In this order: ``init_device``, ``load_model``, specs and memory, ``initialize_from_config``, ``warm_up``, steps.
    ``collective_rpc`` reaches its public methods by name, and as ``extension.NAME`` those of ``worker_extension_cls``.
    """

    def __init__(
        self,
        config: EngineConfig,
        plan: Plan,
        facts: ModelFacts,
        checkpoint: Checkpoint,
        drafter: DrafterFiles | None = None,
    ) -> None:
        self._drafter = drafter
        self._network: nn.Module | None = None
        self._drafter_steps: FollowingSteps | None = None
        self._config = config
        self._plan = plan
        self._facts = facts
        self._checkpoint = checkpoint
        self._extension = build_extension(config, self)
        # Native kernels bring their own threads: two teams on the same CPUs would stand in each other's way.
        self._threads = TorchThreads(1 if plan.kernels == "native" else plan.num_threads)

    def init_device(self) -> None:
        """Take note of the memory that is free. Raises InsufficientMemoryError if the KV memory asked is not."""
        self._check_available(self._plan.kv_cache_bytes or 0, "before the weights are loaded")

    def load_model(self) -> LoadReport:
        """Build the model and fill it from the checkpoint."""
        with TorchThreads(self._plan.num_threads):
            kernels = build_kernels(self._plan)
            self.model = build_empty_model(self._plan, self._facts, kernels)
            report = self._load_weights(self.model, self._checkpoint, self._config.load.load_format)
            if self._drafter is not None:
                self._load_drafter(self._drafter, kernels)
        adapters = build_adapters(self._config, self._plan, self._facts, self.model, kernels)
        self.model_runner = build_model_runner(
            self._config, self._plan, self._facts, self.model, kernels, adapters, self._network, self._drafter_steps
        )
        return report

    def _load_drafter(self, drafter: DrafterFiles, kernels: Kernels) -> None:
        plan, facts = self._plan, self._facts
        self._network = build_empty_drafter(self._config, plan, facts, drafter.facts, self.model, kernels)
        stored = "dummy" if self._config.load.load_format == "dummy" else "auto"
        report = self._load_weights(self._network, drafter.checkpoint, stored)
        self._drafter_steps = build_following_steps(plan, facts, drafter.facts, self._network, kernels)
        logger.info("Loading the drafter took %.2f seconds: %d tensors", report.seconds, report.num_tensors)

    def _load_weights(self, model: nn.Module, checkpoint: Checkpoint, load_format: str) -> LoadReport:
        return load_weights(
            model,
            checkpoint,
            load_format=load_format,
            seed=self._config.model.seed,
            num_threads=self._plan.num_threads,
        )

    def drafter_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        """The same of the drafter's layers; none where nobody drafts, or without keys and values."""
        return {} if self._drafter_steps is None else self._drafter_steps.kv_cache_specs()

    def get_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        """What each layer with a cache of its own asks, by layer name."""
        return dict(self.model.kv_cache_specs())

    def shared_layers(self) -> dict[str, str]:
        """Layers that use another layer's cache, mapped to that layer."""
        return dict(getattr(self.model, "shared_layers", {}))

    def preferred_block_sizes(self) -> Sequence[int]:
        """Block sizes that all attention backends compute with, best first."""
        backends = {id(layer.backend): layer.backend for layer in attention_layers(self.model).values()}
        lists = [backend.preferred_block_sizes for backend in backends.values()]
        return [size for size in lists[0] if all(size in sizes for sizes in lists)] if lists else []

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache: what the Plan says, or its share of the memory less all else that will be in it.

        That is weights, the largest step with the drafter's part in it, and adapters.
        """
        adapters = self._plan.adapter_bytes
        if self._plan.kv_cache_bytes is not None:
            self._check_available(self._plan.kv_cache_bytes, "after the weights are loaded")
            return self._plan.kv_cache_bytes
        assert self._plan.memory_fraction is not None, "the Plan gives KV memory as bytes or as a share"
        step = self._largest_step_bytes()
        weights = parameter_bytes(self.model)
        if self._network is not None:
            weights += parameter_bytes(self._network)
        caps = detect_caps(self._plan.device)
        share = int(self._plan.memory_fraction * caps.total_bytes)
        left = min(share - weights, caps.available_bytes) - step - adapters
        if left <= 0:
            raise InsufficientMemoryError(
                f"gpu_memory_utilization={self._plan.memory_fraction} is {format_byte_size(share)} and "
                f"{format_byte_size(caps.available_bytes)} are free; the weights take {format_byte_size(weights)}, a "
                f"step {format_byte_size(step)} and adapters {format_byte_size(adapters)}, so nothing is left for the "
                "KV cache: raise it, lower max_num_batched_tokens, or free memory.",
                needed_bytes=weights + step + adapters,
                available_bytes=min(share, caps.available_bytes + weights),
            )
        return left

    def initialize_from_config(self, config: KVCacheConfig) -> None:
        """Allocate the KV cache as planned and bind the layers to it."""
        self._kv_cache_config = config
        self.model_runner.initialize_kv_cache(config)

    def warm_up(self) -> GraphReport:
        """Capture the forward pass, and run a step of one made-up token: the first real one finds everything loaded."""
        if self._plan.graph_capture:
            with self._threads:
                report = self.model_runner.capture_graphs(self._facts.vocab_size)
            if not report.captured:
                logger.warning("Steps run op by op, which is slower: %s", report.reason)
        output = dummy_step(self._kv_cache_config, 1, 1, self._facts.vocab_size)
        self.sample(self.execute(output))
        self.sample(self.execute(dummy_end(output)))
        return self.graph_report()

    def graph_report(self) -> GraphReport:
        """What was captured."""
        if self._plan.graph_capture:
            return self.model_runner.graphs.report()
        return GraphReport(captured=False, reason=self._plan.reasons["graph_capture"])

    def graph_counters(self) -> dict[str, int]:
        """Forward passes since start, warm-up included: "replays", "eager_steps" run op by op.

        Of the replays, "loop_steps" followed others in one native call. "drafter_replays" are those of a drafter.
        """
        graphs, drafter = self.model_runner.graphs, self._drafter_steps
        return {
            "replays": graphs.num_replays,
            "eager_steps": graphs.num_eager_steps,
            "loop_steps": graphs.num_loop_steps,
            "drafter_replays": 0 if drafter is None else drafter.graphs.num_replays,
        }

    def sampler_counters(self) -> dict[str, int]:
        """Rows since start: "thinking_budget" forced to end their thoughts, and those each own processor changed."""
        return self.model_runner.head.counters()

    def execute(self, step: SchedulerOutput) -> Step:
        """Compute the hidden states of a step."""
        with self._threads:
            return self.model_runner.execute(step)

    def sample(self, handle: Step, grammar_masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Finish a step that ``execute`` began."""
        with self._threads:
            return self.model_runner.sample(handle, grammar_masks)

    def start_profile(self, with_ops: bool = False) -> None:
        """Take note from now on of what is done when, by each op too where that is asked and steps are captured."""
        self.model_runner.spans = SpanRecorder("worker", detailed=with_ops)
        self.model_runner.graphs.time_ops(with_ops)

    def stop_profile(self) -> list[Span]:
        """What was done since, and no more notes."""
        self.model_runner.graphs.time_ops(False)
        spans, self.model_runner.spans = self.model_runner.spans.take(), NO_SPANS
        return spans

    def weight_bytes(self) -> dict[str, int]:
        """Bytes in memory of the weights that a step reads: those of the layers, and of the output head."""
        return {name: parameter_bytes(getattr(self.model, name)) for name in ("layers", "lm_head")}

    def seconds_in_kernels(self) -> float | None:
        """Seconds that native kernels took so far, in all; None where there are none."""
        native = next(module.kernels.native for module in self.model.modules() if hasattr(module, "kernels"))
        return None if native is None else native.pool.seconds_in_run

    def load_adapter(self, adapter: Adapter) -> None:
        """Have a LoRA adapter in memory before a request needs it. Safe in any thread. Raises RequestError."""
        self.model_runner.adapters.load(adapter)

    def adapter_counters(self) -> dict[str, int]:
        """Rows computed with LoRA adapters, and how often one was read, put into a slot and dropped; empty without."""
        return self.model_runner.adapters.counters()

    def forget_requests(self) -> None:
        """Drop every request: a step failed half-way. What the KV cache holds stays."""
        self.model_runner.forget_requests()

    def collective_rpc(self, name: str, *args: Any) -> Any:
        """Call a public method of the worker, or with ``extension.`` before its name one of the extension.

        Raises UnsupportedError naming the methods there are.
        """
        owner, method = (
            (self._extension, name.removeprefix(EXTENSION_PREFIX))
            if name.startswith(EXTENSION_PREFIX)
            else (self, name)
        )
        if method not in _public_methods(owner):
            own = _public_methods(self) + [EXTENSION_PREFIX + method for method in _public_methods(self._extension)]
            raise UnsupportedError(f"collective_rpc: the worker has no method {name!r}; there are {', '.join(own)}.")
        return getattr(owner, method)(*args)

    def check_health(self) -> None:
        """In-process: alive as long as it can be asked."""

    def shutdown(self) -> None:
        """Let go of the model and the cache. May be called twice."""
        for name in ("model", "model_runner", "_network", "_drafter_steps"):
            vars(self).pop(name, None)

    def _largest_step_bytes(self) -> int:
        plan, longest = self._plan, self._facts.max_position
        config = dummy_kv_cache_config(
            self.get_kv_cache_specs(),
            self.shared_layers(),
            PROFILED_TOKENS,
            longest,
            drafter_specs=self.drafter_kv_cache_specs(),
        )
        self.model_runner.initialize_kv_cache(config)
        with self._threads:
            return step_bytes(
                self.model_runner,
                config,
                max_num_tokens=plan.max_num_batched_tokens,
                max_num_requests=plan.max_num_seqs,
                vocab_size=self._facts.vocab_size,
                num_drafts=plan.num_speculative_tokens,
            )

    def _check_available(self, kv_cache_bytes: int, when: str) -> None:
        available, adapter_bytes = detect_caps(self._plan.device).available_bytes, self._plan.adapter_bytes
        asked_bytes = kv_cache_bytes + adapter_bytes
        if asked_bytes > available:
            adapters = f" and {format_byte_size(adapter_bytes)} for LoRA adapters" if adapter_bytes else ""
            raise InsufficientMemoryError(
                f"{format_byte_size(kv_cache_bytes)} of KV cache{adapters} are asked and {format_byte_size(available)} "
                f"of memory are available {when}: lower kv_cache_memory_bytes or free memory.",
                needed_bytes=asked_bytes,
                available_bytes=available,
            )


def _public_methods(owner: object | None) -> list[str]:
    return [name for name, _ in inspect.getmembers(owner, inspect.ismethod) if not name.startswith("_")]
