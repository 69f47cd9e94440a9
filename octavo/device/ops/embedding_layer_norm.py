"""embedding_layer_norm: what an encoder begins with, the sum of a row of several tables, normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor


def embedding_layer_norm(
    ids: Sequence[Tensor], tables: Sequence[Tensor], weight: Tensor, bias: Tensor, eps: float
) -> Tensor:
    """Return the layer norm (as ``add_layer_norm``) of tables[0][ids[0]] + tables[1][ids[1]] + ..., one to three.

    ids: [T] int64 each, below the table's rows; tables: [rows, width]; weight, bias: [width]. Returns [T, width]. All
    in float32, rounded once to the tables' dtype.
    """
    total = sum(F.embedding(rows, table).float() for rows, table in zip(ids, tables, strict=True))
    assert isinstance(total, Tensor)
    return F.layer_norm(total, weight.shape, weight.float(), bias.float(), eps).to(weight.dtype)
