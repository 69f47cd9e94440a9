"""embedding by a native kernel, where the table is stored as plain rows."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.device.ops.embedding import embedding as reference
from octavo.device.ops.linear import DenseWeight, LinearWeight
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16


def embedding(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/embedding``; tables in other formats unpack their rows themselves."""
    kernel, pool = native.library.embedding, native.pool

    def embedding(token_ids: Tensor, table: LinearWeight, scale: float = 1.0) -> Tensor:
        if not isinstance(table, DenseWeight):
            return reference(token_ids, table, scale)
        assert token_ids.dtype == torch.int64
        ids, rows = token_ids.contiguous(), table.weight.contiguous()
        (vocab_size, width), half = rows.shape, is_bfloat16(rows.dtype)
        rounded = scale if scale == 1.0 else torch.tensor(scale, dtype=rows.dtype).item()
        out = rows.new_empty(len(ids), width)
        addresses = (ids.data_ptr(), rows.data_ptr(), out.data_ptr())
        kernel(pool, *addresses, len(ids), width, vocab_size, rounded, half)
        return out

    return embedding
