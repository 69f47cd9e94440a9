"""encoder_attention: every token of a text attends to all tokens of that text; nothing is kept."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def encoder_attention(qkv: Tensor, query_start_loc: Tensor, num_heads: int, scale: float) -> Tensor:
    """qkv: [T, 3 * num_heads * head_size], query_start_loc: [R + 1] int32 -> [T, num_heads * head_size].

    Text r owns rows query_start_loc[r] : query_start_loc[r + 1]; there is no padding. Scores and sums are float32.
    """
    query, key, value = qkv.float().unflatten(-1, (3, num_heads, -1)).unbind(1)
    bounds = query_start_loc.tolist()
    texts = [
        F.scaled_dot_product_attention(
            *(part[start:end].transpose(0, 1) for part in (query, key, value)), scale=scale
        ).transpose(0, 1)
        for start, end in zip(bounds, bounds[1:], strict=False)
    ]
    return torch.cat(texts).flatten(1).to(qkv.dtype)
