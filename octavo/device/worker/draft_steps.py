"""Steps of a drafter's network, on the requests of the model it drafts for.

Its layers have pages of their own under the numbers of the model's blocks, so block tables, prefix hits, preemption
and copies are the model's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from octavo.device.layers.attention import attention_layers, bind_kv_cache
from octavo.device.spec_decode.progress import Progress
from octavo.device.worker.block_table import BlockTable
from octavo.device.worker.graphs import StepGraphs
from octavo.device.worker.input_batch import GroupInputs, InputBatch, StepInputs
from octavo.device.worker.kv_cache import KVCache, layer_groups
from octavo.words.errors import CaptureError, UnsupportedError
from octavo.words.kv_cache_spec import AnyKVCacheSpec, KVCacheConfig
from octavo.words.messages import NewRequestData, SchedulerOutput

Ints = npt.NDArray[np.int64]

logger = logging.getLogger(__name__)


class FollowingSteps(Protocol):
    """What the model's runner asks of a drafter that keeps keys and values."""

    graphs: StepGraphs

    def kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        """What each of its layers asks of the cache."""
        ...

    def follow(self, model_config: KVCacheConfig, tables: Sequence[BlockTable]) -> None:
        """Allocate its pages, and take one of its model's block tables for its own.

        Where the config has no part for it, as while memory is profiled, it drafts nothing.
        """
        ...

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """As in the model's cache, (source, destination)."""
        ...

    def record(self, batch: InputBatch, token_ids: npt.NDArray[np.int32]) -> None:
        """Record a step on the requests of a made-up one of the model; what cannot be recorded runs op by op."""
        ...

    def check(self, batch: InputBatch, token_ids: npt.NDArray[np.int32]) -> None:
        """Hold replays to eager steps."""
        ...


class _Rows:
    """What ``StepInputs.prepare`` asks of a request table, with the drafter's own counts; request ids are slots."""

    def __init__(self, max_num_requests: int) -> None:
        self.token_ids: npt.NDArray[np.int32] = np.zeros((max_num_requests, 0), dtype=np.int32)
        self.num_tokens = np.zeros(max_num_requests, dtype=np.int64)
        self.num_computed_tokens = np.zeros(max_num_requests, dtype=np.int64)

    def slots(self, request_ids: list[Any]) -> list[int]:
        return request_ids


class FollowingCache:
    """Keys and values of ``network``, and the arrays of its steps.

    features: [max_num_tokens, H], where the network is called with its model's hidden states too.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        vocab_size: int,
        max_num_requests: int,
        max_num_tokens: int,
        features: Tensor | None = None,
    ) -> None:
        self.max_num_tokens = max_num_tokens
        self.features = features
        self._network = network
        self._vocab_size = vocab_size
        self._max_num_requests = max_num_requests
        self._cache: KVCache | None = None
        self._rows = _Rows(max_num_requests)

    @property
    def is_ready(self) -> bool:
        """Whether there is a cache."""
        return self._cache is not None

    def kv_cache_specs(self) -> dict[str, AnyKVCacheSpec]:
        return {name: layer.kv_cache_spec() for name, layer in attention_layers(self._network).items()}

    def follow(self, model_config: KVCacheConfig, tables: Sequence[BlockTable]) -> None:
        config, self.group = model_config.drafter, model_config.drafter_follows
        if config is None:
            self._cache = None
            return
        table, layers = tables[self.group], attention_layers(self._network)
        groups = layer_groups(config, layers)
        if groups[0].kernel_block_size != table.kernel_block_size:
            raise UnsupportedError(
                f"the drafter's attention computes with blocks of {groups[0].kernel_block_size} tokens and its model's "
                f"with {table.kernel_block_size}: set block_size to a multiple of both"
            )
        self._cache = KVCache(config, groups)
        bind_kv_cache(layers, self._cache.layers)
        sizes = {"max_num_requests": self._max_num_requests, "max_num_tokens": self.max_num_tokens}
        self._inputs = StepInputs(
            [GroupInputs(groups[0], table, max_model_len=config.max_model_len, **sizes)],
            **sizes,
            features=self.features,
        )
        self.progress = Progress(table, config.num_blocks, self._max_num_requests)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        if self._cache is not None:
            self._cache.copy_blocks(pairs)

    def prepare(self, slots: Ints, starts: Ints, counts: Ints, token_ids: npt.NDArray[np.int32]) -> InputBatch:
        """A step of ``counts`` tokens of each request after ``starts`` others."""
        self._rows.token_ids = token_ids
        self._rows.num_computed_tokens[slots] = starts
        self._rows.num_tokens[slots] = starts + counts
        scheduled: dict[Any, int] = dict(zip(slots.tolist(), counts.tolist(), strict=True))
        batch = self._inputs.prepare(SchedulerOutput(step_id=0, num_scheduled_tokens=scheduled), self._rows)
        # Ids that only the model has rows for mean nothing.
        self._inputs.token_ids.clamp_(max=self._vocab_size - 1)
        return batch


class DraftSteps:
    """Runs a drafter, captured where ``graphs`` could be. Logits become ``vocab_size`` wide, as its model's are."""

    def __init__(self, cache: FollowingCache, graphs: StepGraphs, *, vocab_size: int) -> None:
        self.graphs = graphs
        self.max_num_tokens = cache.max_num_tokens
        self._cache = cache
        self._vocab_size = vocab_size
        self.kv_cache_specs = cache.kv_cache_specs
        self.copy_blocks = cache.copy_blocks

    @property
    def is_ready(self) -> bool:
        return self._cache.is_ready

    @property
    def progress(self) -> Progress:
        return self._cache.progress

    def follow(self, model_config: KVCacheConfig, tables: Sequence[BlockTable]) -> None:
        self._cache.follow(model_config, tables)
        self.graphs.forget("not captured yet")

    def add(self, slot: int, request: NewRequestData) -> None:
        if self._cache.is_ready:
            self._cache.progress.add(slot, request, request.block_ids[self._cache.group])

    def run(self, slots: Ints, starts: Ints, counts: Ints, token_ids: npt.NDArray[np.int32]) -> Tensor:
        return self.graphs.forward(self._cache.prepare(slots, starts, counts, token_ids))

    def run_on(
        self, features: Tensor, slots: Ints, starts: Ints, counts: Ints, token_ids: npt.NDArray[np.int32]
    ) -> Tensor:
        """``run`` for a network that also takes its model's features [sum, H] of these positions."""
        assert self._cache.features is not None, "the network takes features"
        self._cache.features[: len(features)] = features
        return self.run(slots, starts, counts, token_ids)

    def logits(self, hidden: Tensor, rows: Ints) -> Tensor:
        logits = self.graphs.logits(hidden, rows)
        lacking = self._vocab_size - logits.shape[1]
        if not lacking:
            return logits
        return torch.nn.functional.pad(logits, (0, lacking), value=-torch.inf).contiguous()

    def record(self, batch: InputBatch, token_ids: npt.NDArray[np.int32]) -> None:
        try:
            self.graphs.record(self._like(batch, token_ids))
        except CaptureError as error:
            self._go_eager(error)

    def check(self, batch: InputBatch, token_ids: npt.NDArray[np.int32]) -> None:
        if not self.graphs.report().captured:
            return
        try:
            self.graphs.check(self._like(batch, token_ids))
        except CaptureError as error:
            self._go_eager(error)

    def _like(self, batch: InputBatch, token_ids: npt.NDArray[np.int32]) -> InputBatch:
        if (features := self._cache.features) is not None:
            made_up = features[: batch.num_tokens]
            made_up.copy_(torch.linspace(-1.0, 1.0, made_up.numel()).view_as(made_up))
        return self._cache.prepare(batch.slots, batch.num_computed, batch.seq_lens - batch.num_computed, token_ids)

    def _go_eager(self, error: CaptureError) -> None:
        logger.warning("The drafter's steps run op by op, which is slower: %s", error)
        self.graphs.forget(str(error))
