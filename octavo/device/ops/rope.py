"""rope: rotary position embedding of query and key heads, from a table of angles."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RopeTable:
    """Angles of every position, one table per engine.

    cos_sin:     [max_model_len, rotary_dim] float32: rotary_dim / 2 cosines, then as many sines.
    interleaved: pairs are neighbours (GPT-J) instead of the two halves of the rotated entries (NeoX).
    """

    cos_sin: Tensor
    interleaved: bool = False


def rope(heads: Tensor, positions: Tensor, table: RopeTable) -> Tensor:
    """Rotate the leading rotary_dim entries of each head by its row's position (Su et al., 2021).

    heads: [T, num_heads, head_size], positions: [T] int64. Computed in float32, returned as float32; entries beyond
    rotary_dim pass through.
    """
    cos, sin = table.cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)
    rotary_dim = table.cos_sin.shape[1]
    heads = heads.float()
    rotated, rest = heads[..., :rotary_dim], heads[..., rotary_dim:]
    if table.interleaved:
        first, second = rotated[..., ::2], rotated[..., 1::2]
    else:
        first, second = rotated.chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    if table.interleaved:
        return torch.cat((torch.stack(turned, dim=-1).flatten(-2), rest), dim=-1)
    return torch.cat((*turned, rest), dim=-1)
