"""embedding by native kernels: from plain rows, or from a table in the format of the output head that shares it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.device.ops.linear import DenseWeight, LinearWeight
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16


def embedding(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/embedding``; tables in other formats unpack their rows themselves."""
    library = native.library

    def embedding(token_ids: Tensor, table: LinearWeight, scale: float = 1.0) -> Tensor:
        if isinstance(table, DenseWeight):
            return plain_rows(token_ids, table.weight, scale)
        rows = table.rows(token_ids)
        if scale != 1.0:
            half, width = is_bfloat16(rows.dtype), rows.shape[1]
            native.run(library.scale(rows.data_ptr(), width, _rounded(scale, rows.dtype), half), len(rows), rows)
        return rows

    def plain_rows(token_ids: Tensor, table: Tensor, scale: float) -> Tensor:
        assert token_ids.dtype == torch.int64
        ids, rows = token_ids.contiguous(), table.contiguous()
        (vocab_size, width), half = rows.shape, is_bfloat16(rows.dtype)
        out = native.empty(ids, width, dtype=rows.dtype)
        addresses = (ids.data_ptr(), rows.data_ptr(), out.data_ptr())
        lookup = library.embedding(*addresses, width, vocab_size, _rounded(scale, rows.dtype), half)
        native.run(lookup, len(ids), ids, rows, out)
        return out

    return embedding


def _rounded(scale: float, dtype: torch.dtype) -> float:
    return scale if scale == 1.0 else torch.tensor(scale, dtype=dtype).item()
