"""One worker, in the process of the engine core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.executor.protocol import Handle
from octavo.util.spans import Span
from octavo.words.graph_report import GraphReport
from octavo.words.kv_cache_spec import AnyKVCacheSpec, KVCacheConfig
from octavo.words.messages import GrammarMasks, ModelRunnerOutput, SchedulerOutput


class UniProcExecutor:
    """Hands everything to one worker whose model is loaded; ``execute`` returns when the forward pass is done.

    Loads no torch: the worker is built and passed in by ``engine/build.py``.
    """

    max_steps_in_flight = 1

    def __init__(self, worker: Any) -> None:
        self._worker = worker

    def get_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        return self._worker.get_kv_cache_specs()

    def drafter_kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        return self._worker.drafter_kv_cache_specs()

    def shared_layers(self) -> dict[str, str]:
        return self._worker.shared_layers()

    def preferred_block_sizes(self) -> Sequence[int]:
        return self._worker.preferred_block_sizes()

    def determine_available_memory(self) -> int:
        return self._worker.determine_available_memory()

    def initialize_from_config(self, config: KVCacheConfig) -> None:
        self._worker.initialize_from_config(config)

    def warm_up(self) -> GraphReport | None:
        return self._worker.warm_up()

    def execute(self, step: SchedulerOutput) -> Handle:
        return self._worker.execute(step)

    def sample(self, handle: Handle, grammar_masks: GrammarMasks | None = None) -> ModelRunnerOutput:
        return self._worker.sample(handle, grammar_masks)

    def start_profile(self, with_ops: bool = False) -> None:
        self._worker.start_profile(with_ops)

    def stop_profile(self) -> list[Span]:
        return self._worker.stop_profile()

    def forget_requests(self) -> None:
        self._worker.forget_requests()

    def collective_rpc(self, name: str, *args: Any) -> list[Any]:
        return [self._worker.collective_rpc(name, *args)]

    def check_health(self) -> None:
        self._worker.check_health()

    def shutdown(self) -> None:
        self._worker.shutdown()
