"""What one step tells an attention backend: who the rows of the batch are and where their keys and values lie."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class CommonMetadata:
    """One KV group's view of a step, before a backend has made it its own; built by the worker's input batch.

    R requests own T tokens, request after request. Every array exists twice where a backend may want it without
    a device synchronisation: ``*_host`` are numpy arrays with the same values.

    query_start_loc: [R + 1] int32; request r owns rows query_start_loc[r] : query_start_loc[r + 1].
    seq_lens:        [R] int32; tokens of the request once this step's are stored (context + this step's).
    block_table:     [R, >= max blocks] int32; kernel block ids, entries past a request's length are arbitrary.
    slot_mapping:    [T] int64; block_id * block_size + offset of each token; -1 is padding and is never written.
    block_size:      tokens of one kernel block, the second axis of a cache half.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    query_start_loc_host: np.ndarray
    seq_lens_host: np.ndarray
    block_size: int
    max_query_len: int
    max_seq_len: int

    @property
    def num_requests(self) -> int:
        return len(self.seq_lens_host)


@dataclass(frozen=True, kw_only=True)
class AttentionMetadata:
    """What the layers of one (backend, spec) in a KV group read; fields as in CommonMetadata.

    Backends extend it with what they prepare once per step. Shared by all those layers, never changed by them.
    """

    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    slot_mapping: Tensor
    block_size: int
    max_query_len: int
    max_seq_len: int

    @classmethod
    def of(cls, common: CommonMetadata, **prepared: Any) -> Self:
        """A backend's metadata from the common ones and what it has ``prepared``: the fields it adds."""
        shared = {field.name: getattr(common, field.name) for field in fields(AttentionMetadata)}
        return cls(**shared, **prepared)
