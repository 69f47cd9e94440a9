"""embedding: rows of a table."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def embedding(token_ids: Tensor, table: Tensor, scale: float = 1.0) -> Tensor:
    """Look up each token's row, times ``scale``.

    token_ids: [T] int64 below the table's rows. table: [vocab_size, hidden_size].
    Returns [T, hidden_size] in the table's dtype. The scale is rounded to that dtype first, then the product is.
    """
    rows = F.embedding(token_ids, table)
    if scale == 1.0:
        return rows
    return rows * torch.tensor(scale, dtype=table.dtype, device=table.device)
