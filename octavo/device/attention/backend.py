"""The seam between attention layers and the code that computes attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from octavo.device.attention.metadata import AttentionMetadata, CommonMetadata
from octavo.device.ops.paged_attention import AttentionOptions
from octavo.words.kv_cache_spec import AttentionSpec


@dataclass(frozen=True, kw_only=True)
class AttentionNeeds:
    """What a model asks of a backend, over all its layers. dtypes are names (float32, bfloat16).

    ``has_native`` says that the engine's kernels are native ones, which a backend can then run on.
    """

    device: str
    head_size: int
    dtype: str
    kv_cache_dtype: str
    block_size: int | None = None
    sliding_window: bool = False
    chunked_local: bool = False
    softcap: bool = False
    sinks: bool = False
    has_native: bool = False


@dataclass(frozen=True, kw_only=True)
class Support:
    """What a backend can do, as data. An empty tuple means that any value is fine."""

    devices: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    kv_cache_dtypes: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    head_size_multiple: int = 1
    block_size_multiple: int = 1
    sliding_window: bool = True
    chunked_local: bool = True
    softcap: bool = True
    sinks: bool = True
    needs_native: bool = False

    def reasons_against(self, needs: AttentionNeeds) -> list[str]:
        """Say, one line each, why these needs do not fit; an empty list is a yes."""
        lists = (
            ("device", needs.device, self.devices),
            ("dtype", needs.dtype, self.dtypes),
            ("KV cache dtype", needs.kv_cache_dtype, self.kv_cache_dtypes),
            ("head size", needs.head_size, self.head_sizes),
        )
        reasons = [
            f"{what} {asked} is not one of {', '.join(map(str, known))}"
            for what, asked, known in lists
            if known and asked not in known
        ]
        if self.needs_native and not needs.has_native:
            reasons.append("it needs native kernels, and this engine runs on others")
        if needs.head_size % self.head_size_multiple:
            reasons.append(f"head size {needs.head_size} is not a multiple of {self.head_size_multiple}")
        if needs.block_size is not None and needs.block_size % self.block_size_multiple:
            reasons.append(f"block size {needs.block_size} is not a multiple of {self.block_size_multiple}")
        features = ("sliding_window", "chunked_local", "softcap", "sinks")
        reasons += [
            f"{feature.replace('_', ' ')} is not supported"
            for feature in features
            if getattr(needs, feature) and not getattr(self, feature)
        ]
        return reasons


class AttentionBackend(Protocol):
    """Computes attention over a paged cache. Stateless: everything a step needs is in its metadata.

    Made without arguments, or from the NativeContext if its support says ``needs_native``.

    ``preferred_block_sizes`` are kernel block sizes in tokens, best first; the first is used where nobody asked.
    How a block's bytes are laid out is the backend's own affair, and that of the ``qkv_rope_write`` that goes with it;
    ``block_axis`` is the axis of a cache tensor that counts blocks, and a block's bytes lie together.
    """

    name: str
    support: Support
    preferred_block_sizes: tuple[int, ...]
    block_axis: int

    def kv_cache_shape(self, num_blocks: int, spec: AttentionSpec) -> tuple[int, ...]:
        """Shape of one layer's cache tensor, of the spec's dtype, for blocks of ``spec.block_size`` tokens."""
        ...

    def build_metadata(self, common: CommonMetadata, spec: AttentionSpec) -> AttentionMetadata:
        """Prepare a step, once for all layers of a KV group that have this spec."""
        ...

    def forward(
        self,
        query: Tensor,
        kv_cache: Tensor,
        metadata: AttentionMetadata,
        options: AttentionOptions,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Attend from each row to its request's cached tokens up to itself; this step's are already stored.

        query: [T, num_heads, head_size], not yet scaled. Returns the same shape and dtype.
        """
        ...
