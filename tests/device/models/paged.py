"""Runs a model as a worker would: requests with shuffled blocks in one cache, several to a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from octavo.checkpoint.facts import read_model_facts
from octavo.checkpoint.resolve import resolve_model
from octavo.device.attention.context import ForwardContext
from octavo.device.attention.cpu import CpuAttention
from octavo.device.attention.metadata import CommonMetadata
from octavo.device.attention.reference import ReferenceAttention
from octavo.device.layers.attention import attention_layers, bind_kv_cache
from octavo.device.layers.quantization.native_dense import NativeDense
from octavo.device.layers.quantization.unquantized import UNQUANTIZED
from octavo.device.loader.load import load_weights
from octavo.device.models.build import build_model
from octavo.device.models.options import ModelOptions
from octavo.device.ops.kernels import load_kernels


def load_tiny_model(
    folder: Path,
    *,
    max_model_len: int = 256,
    dtype: torch.dtype = torch.float32,
    kv_cache_dtype: torch.dtype | None = None,
    kernels: str = "reference",
) -> nn.Module:
    """Build the checkpoint's model with its weights; ``kernels`` is a backend of the ops, native on two threads."""
    checkpoint = resolve_model(str(folder))
    chosen = load_kernels(kernels, num_threads=2)
    native = kernels == "native"
    options = ModelOptions(
        dtype=dtype,
        kv_cache_dtype=kv_cache_dtype or dtype,
        max_model_len=max_model_len,
        attention=CpuAttention(chosen.native) if native else ReferenceAttention(),
        kernels=chosen,
        quantization=NativeDense(chosen.native) if native else UNQUANTIZED,
        head_quantization=NativeDense(chosen.native) if native else UNQUANTIZED,
    )
    model = build_model(read_model_facts(checkpoint), options)
    load_weights(model, checkpoint)
    return model


class PagedRun:
    """Requests of given tokens whose blocks are a random permutation of a cache that starts full of NaN."""

    def __init__(self, model: nn.Module, requests: list[list[int]], *, block_size: int = 16, seed: int = 0) -> None:
        self.model = model
        self.requests = requests
        self.block_size = block_size
        blocks_each = max(-(-len(tokens) // block_size) for tokens in requests) + 1
        count = len(requests) * blocks_each
        order = np.random.default_rng(seed).permutation(count) + 1
        self.block_table = order.reshape(len(requests), blocks_each).astype(np.int32)
        self.done = [0] * len(requests)
        self.specs = model.kv_cache_specs()
        self.backend = next(iter(attention_layers(model).values())).backend
        caches = {
            name: torch.full(
                self.backend.kv_cache_shape(count + 1, spec.with_block_size(block_size)),
                -1 if spec.dtype == "int8" else float("nan"),  # four bytes of -1 are a scale that is not a number
                dtype=getattr(torch, spec.dtype),
            )
            for name, spec in self.specs.items()
        }
        bind_kv_cache(attention_layers(model), caches)

    def step(self, num_tokens: list[int]) -> list[Tensor]:
        """Run the next ``num_tokens[r]`` tokens of each request r; return the logits of those rows per request."""
        spans = [range(done, done + n) for done, n in zip(self.done, num_tokens, strict=True)]
        self.done = [span.stop for span in spans]
        common = self._metadata(spans)
        by_spec = {spec: self.backend.build_metadata(common, spec) for spec in set(self.specs.values())}
        ctx = ForwardContext({name: by_spec[spec] for name, spec in self.specs.items()}, sum(num_tokens))
        tokens = [t for tokens, span in zip(self.requests, spans, strict=True) for t in tokens[span.start : span.stop]]
        positions = torch.tensor([position for span in spans for position in span])
        hidden = self.model(torch.tensor(tokens), positions, ctx)
        return list(self.model.compute_logits(hidden).split(num_tokens))

    def run(self, chunk: int) -> list[Tensor]:
        """Run all requests to their ends, ``chunk`` tokens of each to a step; return their logits at every position."""
        logits: list[list[Tensor]] = [[] for _ in self.requests]
        while any(done < len(tokens) for done, tokens in zip(self.done, self.requests, strict=True)):
            sizes = [min(chunk, len(t) - done) for t, done in zip(self.requests, self.done, strict=True)]
            for collected, rows in zip(logits, self.step(sizes), strict=True):
                collected.append(rows)
        return [torch.cat(rows) for rows in logits]

    def _metadata(self, spans: list[range]) -> CommonMetadata:
        starts = np.cumsum([0, *map(len, spans)], dtype=np.int32)
        seq_lens = np.array([span.stop for span in spans], dtype=np.int32)
        slots = [
            int(self.block_table[request, position // self.block_size]) * self.block_size + position % self.block_size
            for request, span in enumerate(spans)
            for position in span
        ]
        return CommonMetadata(
            query_start_loc=torch.from_numpy(starts),
            seq_lens=torch.from_numpy(seq_lens),
            block_table=torch.from_numpy(self.block_table),
            slot_mapping=torch.tensor(slots, dtype=torch.int64),
            query_start_loc_host=starts,
            seq_lens_host=seq_lens,
            block_size=self.block_size,
            max_query_len=max(map(len, spans)),
            max_seq_len=int(seq_lens.max()),
        )
