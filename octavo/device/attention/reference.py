"""Attention in plain torch: every feature, every device; the oracle of the other backends."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from octavo.device.attention.backend import Support
from octavo.device.attention.metadata import AttentionMetadata, CommonMetadata
from octavo.device.ops.paged_attention import AttentionOptions, WorkList, paged_attention
from octavo.words.kv_cache_spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class ReferenceMetadata(AttentionMetadata):
    """The step's rows arranged in tiles, shared by all layers that read this metadata."""

    work: WorkList


class ReferenceAttention:
    """The plain-torch backend."""

    name = "reference"
    support = Support(
        dtypes=("float32", "bfloat16", "float16"),
        kv_cache_dtypes=("float32", "bfloat16", "float16", "int8"),
    )
    preferred_block_sizes = (32, 16, 64)
    block_axis = 1

    def kv_cache_shape(self, num_blocks: int, spec: AttentionSpec) -> tuple[int, ...]:
        return (2, num_blocks, spec.block_size, spec.num_kv_heads, spec.entries_per_head)

    def build_metadata(self, common: CommonMetadata, spec: AttentionSpec) -> ReferenceMetadata:
        work = WorkList(common.query_start_loc_host, common.seq_lens_host, common.block_table, common.block_size)
        return ReferenceMetadata.of(common, work=work)

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        sinks: Tensor | None = None,
    ) -> Tensor:
        if not isinstance(metadata, ReferenceMetadata):
            raise TypeError(
                f"reference attention was handed the metadata of another backend: {type(metadata).__name__}"
            )
        return paged_attention(query, kv_cache, metadata.work, options, sinks)
