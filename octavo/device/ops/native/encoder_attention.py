"""encoder_attention by a native kernel; what a text's rows become does not depend on the other texts, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16


def encoder_attention(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/encoder_attention``."""
    launch = native.library.encoder_attention

    def encoder_attention(qkv: Tensor, query_start_loc: Tensor, num_heads: int, scale: float) -> Tensor:
        qkv, bounds, width = qkv.contiguous(), query_start_loc.contiguous(), qkv.shape[-1] // 3
        assert bounds.dtype == torch.int32 and width % num_heads == 0
        out = native.empty(qkv, width)
        addresses = (qkv.data_ptr(), bounds.data_ptr(), out.data_ptr())
        attend = launch(*addresses, num_heads, width // num_heads, scale, is_bfloat16(qkv.dtype))
        native.run(attend, len(qkv), qkv, bounds, out, num_requests=len(bounds) - 1)
        return out

    return encoder_attention
