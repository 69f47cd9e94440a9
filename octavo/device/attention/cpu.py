"""Attention by native kernels: a row's output is the same to the bit in any batch, chunking and thread count."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor

from octavo.device.attention.backend import Support
from octavo.device.attention.metadata import AttentionMetadata, CommonMetadata
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.kv_cache import native_cache_shape
from octavo.device.ops.native.paged_attention import NativeStep, attend
from octavo.device.ops.paged_attention import AttentionOptions
from octavo.plan.native_ops import (
    NATIVE_BLOCK_SIZE_MULTIPLE,
    NATIVE_CACHE_DTYPES,
    NATIVE_DTYPES,
    NATIVE_HEAD_SIZE_MULTIPLE,
)
from octavo.words.kv_cache_spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class CpuMetadata(AttentionMetadata):
    """The step's int32 arrays as the kernels take them, by address."""

    step: NativeStep


class CpuAttention:
    """The native backend; ``native`` has the library and the threads it runs on."""

    name = "cpu"
    support = Support(
        devices=("cpu",),
        dtypes=NATIVE_DTYPES,
        kv_cache_dtypes=NATIVE_CACHE_DTYPES,
        head_size_multiple=NATIVE_HEAD_SIZE_MULTIPLE,
        block_size_multiple=NATIVE_BLOCK_SIZE_MULTIPLE,
        needs_native=True,
    )
    preferred_block_sizes = (32, 16, 64)
    block_axis = 0

    def __init__(self, native: NativeContext) -> None:
        self._native = native
        self._attend = native.op("paged_attention", partial(attend, native), has_kernel=True)

    def kv_cache_shape(self, num_blocks: int, spec: AttentionSpec) -> tuple[int, ...]:
        return native_cache_shape(num_blocks, spec)

    def build_metadata(self, common: CommonMetadata, spec: AttentionSpec) -> CpuMetadata:
        step = NativeStep(self._native, common.query_start_loc, common.seq_lens, common.block_table)
        return CpuMetadata.of(common, step=step)

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(metadata, CpuMetadata):
            raise TypeError(f"cpu attention was handed the metadata of another backend: {type(metadata).__name__}")
        attended: Tensor = self._attend(query, kv_cache, metadata.step, options, sinks)
        return attended
