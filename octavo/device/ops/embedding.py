"""embedding: rows of a table."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.ops.linear import LinearWeight


def embedding(token_ids: Tensor, table: LinearWeight, scale: float = 1.0) -> Tensor:
    """Look up each token's row, times ``scale``.

    token_ids: [T] int64 below the table's rows. table: [vocab_size, hidden_size] in some format; it may be the output
    head's too. Returns [T, hidden_size] in the activations' dtype. The scale is rounded to that dtype first, then the
    product is.
    """
    rows = table.rows(token_ids)
    if scale == 1.0:
        return rows
    return rows * torch.tensor(scale, dtype=rows.dtype, device=rows.device)
