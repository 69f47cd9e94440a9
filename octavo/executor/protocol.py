"""What the engine core asks of whoever runs the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from octavo.util.spans import Span
from octavo.words.graph_report import GraphReport
from octavo.words.kv_cache_spec import AnyKVCacheSpec, KVCacheConfig
from octavo.words.messages import GrammarMasks, ModelRunnerOutput, SchedulerOutput

Handle: TypeAlias = Any
"""A step in flight. Only the executor that returned it looks inside."""


class Executor(Protocol):
    """Runs steps on one or several workers.

    Called in this order: specs and memory, ``initialize_from_config``, ``warm_up``, then steps. ``execute`` is
    given the steps in order and ``sample`` is asked for their results in the same order; at most
    ``max_steps_in_flight`` steps are executed and not yet sampled. A worker drops ``finished_request_ids`` and
    ``preempted_request_ids`` before it takes ``new_requests``.
    """

    max_steps_in_flight: int

    def get_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        """What each layer that keeps keys and values needs, by layer name."""

    def drafter_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        """The same of a drafter's layers; none where nobody drafts, or without keys and values."""

    def shared_layers(self) -> dict[str, str]:
        """Layers that reuse another layer's cache, mapped to that layer."""

    def preferred_block_sizes(self) -> Sequence[int]:
        """Block sizes that all attention backends accept, best first."""

    def determine_available_memory(self) -> int:
        """Bytes left for the KV cache on the tightest worker."""

    def initialize_from_config(self, config: KVCacheConfig) -> None:
        """Allocate and bind the cache tensors."""

    def warm_up(self) -> GraphReport | None:
        """Run what would make the first steps slow; say what was captured, where there is something to capture."""

    def execute(self, step: SchedulerOutput) -> Handle:
        """Start a step, one without tokens too, and return before it is done where the executor can."""

    def sample(self, handle: Handle, grammar_masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        """Sample the step's tokens; blocks until they are there."""

    def start_profile(self, with_ops: bool = False) -> None:
        """Take note from now on of what the workers do when, by each op too where that is asked and can be had."""

    def stop_profile(self) -> list[Span]:
        """What they did since, and no more notes."""

    def forget_requests(self) -> None:
        """Drop every request and every step in flight: a step failed half-way. The next step has only new requests."""

    def collective_rpc(self, name: str, *args: Any) -> list[Any]:
        """Call a worker method by name on every worker; one result per worker."""

    def check_health(self) -> None:
        """Raise EngineDeadError if a worker is gone."""

    def shutdown(self) -> None:
        """Stop the workers and free what they hold; may be called twice."""
