"""A loaded model's linear layers and attention, run alone: what ``octavo bench kernels`` asks of a worker.

They run as in a captured step, recorded layer after layer and replayed in one native call: called from Python, an op of
few rows takes several times as long.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from octavo.device.attention.metadata import AttentionMetadata, CommonMetadata
from octavo.device.layers.attention import Attention, attention_layers
from octavo.device.layers.embedding import LMHead
from octavo.device.layers.linear import Linear
from octavo.device.ops.recording import Arena, Recorder, Recording
from octavo.device.worker.kv_cache import untouched
from octavo.device.worker.memory import parameter_bytes
from octavo.words.errors import UnsupportedError

COLD_BYTES = 256 << 20
"""More than any cache holds: streamed through before each timing, so that weights and keys come from memory."""

MAX_CALLS = 16
"""Layers of a kind that are timed in one go."""

Call = Callable[[], Tensor]


class KernelProbe:
    """A worker extension. One timing is of calls on different layers' weights, or different keys, in a row."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self._cold: Any = None

    def linears(self) -> list[dict[str, Any]]:
        """Kinds of linear layer, and per call of each: inputs ``k``, outputs ``n``, bytes of weights."""
        return [
            {"name": name, "format": format, "k": k, "n": n, "bytes": sum(map(parameter_bytes, modules)) / len(modules)}
            for (name, format, k, n), modules in self._kinds().items()
        ]

    def time_linear(self, name: str, format: str, rows: Sequence[int], repeats: int) -> list[list[float]]:
        """Seconds per call, ``repeats`` times, for each of these numbers of rows; measured in turn."""
        (_, _, k, _), modules = next(item for item in self._kinds().items() if item[0][:2] == (name, format))
        x = torch.randn(max(rows), k, dtype=self._dtype())
        calls = [lambda module=module: module(x[:1]) for module in modules[:MAX_CALLS]]
        return self._time(calls, x, [(num_rows, 1) for num_rows in rows], num_recorded=1, repeats=repeats)

    def attentions(self) -> list[dict[str, Any]]:
        """Kinds of attention layer: name of the first, heads, head size, window (None: everything), bytes per token."""
        return [
            {
                "name": layer.name,
                "num_heads": layer.options.num_heads,
                "head_size": layer.options.head_size,
                "window": layer.options.sliding_window or layer.options.chunk_size,
                "bytes_per_token": layer.kv_cache_spec().natural_page_bytes // layer.kv_cache_spec().block_size,
            }
            for layer in self._attention_kinds()
        ]

    def time_attention(
        self, name: str, context_len: int, num_rows: int, num_requests: int, repeats: int
    ) -> list[float]:
        """Seconds per call: each of ``num_requests`` has ``context_len`` tokens, the last ``num_rows`` of them new."""
        layer = next(layer for layer in self._attention_kinds() if layer.name == name)
        options = layer.options
        query = torch.randn(num_requests * num_rows, options.num_heads, options.head_size, dtype=self._dtype())
        calls = list(self._attention_calls(layer, query, context_len, num_requests))
        sizes = [(len(query), num_requests)]
        return self._time(calls, query, sizes, num_recorded=len(query), repeats=repeats)[0]

    def _attention_calls(self, layer: Attention, query: Tensor, context_len: int, num_requests: int) -> Iterator[Call]:
        spec = layer.kv_cache_spec()
        blocks_each = -(-context_len // spec.block_size)
        num_calls = min(MAX_CALLS, max(1, COLD_BYTES // (num_requests * blocks_each * spec.page_bytes)))
        num_blocks = 1 + num_calls * num_requests * blocks_each
        shape = layer.backend.kv_cache_shape(num_blocks, spec)
        memory = untouched(math.prod(shape) * layer.kv_cache_dtype.itemsize).view(layer.kv_cache_dtype)
        cache = memory.fill_(1).view(shape)
        tables = torch.arange(1, num_blocks, dtype=torch.int32).view(num_calls, num_requests, blocks_each)
        for table in tables:
            metadata = _metadata(layer, table, context_len, len(query) // num_requests)
            yield lambda metadata=metadata: layer.backend.forward(query, cache, metadata, layer.options, layer.sinks)

    @torch.inference_mode()
    def _time(
        self, calls: Sequence[Call], rows: Tensor, sizes: Sequence[tuple[int, int]], *, num_recorded: int, repeats: int
    ) -> list[list[float]]:
        """Seconds per call of replays of each (rows, requests), in turn; one round before them is not timed.

        ``calls`` take the first ``num_recorded`` of ``rows`` while they are recorded.
        """
        recording = self._record(calls, rows, num_recorded)
        rounds = [[self._replay(recording, *size) / len(calls) for size in sizes] for _ in range(repeats + 1)]
        return [list(seconds) for seconds in zip(*rounds[1:], strict=True)]

    def _record(self, calls: Sequence[Call], rows: Tensor, num_recorded: int) -> Recording:
        def in_turn() -> Tensor:
            for call in calls:
                result = call()
            return result

        recorder = Recorder(self._native(), Arena(len(rows)), num_recorded, token_arrays=[rows])
        recording = recorder.record(self.worker.model, in_turn)
        for graph in recording.graphs:
            graph.timed = True
        return recording

    def _replay(self, recording: Recording, num_rows: int, num_requests: int) -> float:
        """Seconds of a replay by the library's clock, for this code is cold; by Python's where that calls some ops."""
        self._stream()
        started = time.perf_counter()
        recording.replay(num_rows, num_requests, dict)
        ended = time.perf_counter()
        if recording.splits:
            return ended - started
        (graph,) = recording.graphs
        timings = graph.timings()
        return float(timings[-1][3] - timings[0][2])

    def _stream(self) -> None:
        native = self._native()
        if self._cold is None:
            self._cold = native.library.BandwidthProbe(native.pool, COLD_BYTES)
        self._cold.read_seconds(native.pool)

    def _native(self) -> Any:
        native = next(module.kernels.native for module in self.worker.model.modules() if hasattr(module, "kernels"))
        if native is None:
            raise UnsupportedError("only native kernels are measured alone: choose kernels=native")
        return native

    def _dtype(self) -> torch.dtype:
        return self.worker.model.norm.weight.dtype

    def _kinds(self) -> dict[tuple[str, str, int, int], list[nn.Module]]:
        """Modules by (name without the layer's number, weights' format, inputs, outputs)."""
        kinds: dict[tuple[str, str, int, int], list[nn.Module]] = {}
        for name, module in self.worker.model.named_modules():
            if isinstance(module, Linear):
                kind = ".".join(part for part in name.split(".") if not part.isdecimal()).removeprefix("layers.")
                shape = (module.in_features, module.out_features)
                kinds.setdefault((kind, module.operand.format, *shape), []).append(module)
            elif isinstance(module, LMHead):
                operand = module.rows.operand
                kinds[(name, operand.format, operand.in_features, operand.out_features)] = [module]
        return kinds

    def _attention_kinds(self) -> list[Attention]:
        first: dict[Any, Attention] = {}
        for layer in attention_layers(self.worker.model).values():
            first.setdefault(layer.options, layer)
        return list(first.values())


def _metadata(layer: Attention, table: Tensor, context_len: int, num_rows: int) -> AttentionMetadata:
    """The step in which every request of ``table`` [R, blocks] computes its last ``num_rows`` tokens."""
    num_requests, spec = len(table), layer.kv_cache_spec()
    starts = np.arange(num_requests + 1) * num_rows
    lengths = np.full(num_requests, context_len)
    common = CommonMetadata(
        query_start_loc=torch.from_numpy(starts.astype(np.int32)),
        seq_lens=torch.from_numpy(lengths.astype(np.int32)),
        block_table=table.contiguous(),
        slot_mapping=torch.full((num_requests * num_rows,), -1),
        query_start_loc_host=starts,
        seq_lens_host=lengths,
        block_size=spec.block_size,
        max_query_len=num_rows,
        max_seq_len=context_len,
    )
    return layer.backend.build_metadata(common, spec)
