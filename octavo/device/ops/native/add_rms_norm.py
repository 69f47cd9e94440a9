"""add_rms_norm by a native kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16


def add_rms_norm(native: NativeContext) -> Callable[..., tuple[Tensor, Tensor]]:
    """The op with the contract of ``ops/add_rms_norm``."""
    kernel, pool = native.library.rms_norm, native.pool

    def add_rms_norm(
        x: Tensor, residual: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0
    ) -> tuple[Tensor, Tensor]:
        x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
        assert x.shape == residual.shape and weight.shape == (width,)
        assert x.dtype == residual.dtype == weight.dtype
        out, total, rows = torch.empty_like(x), torch.empty_like(x), x.numel() // width
        addresses = (x.data_ptr(), residual.data_ptr(), weight.data_ptr(), total.data_ptr(), out.data_ptr())
        kernel(pool, *addresses, rows, width, eps, weight_offset, is_bfloat16(x.dtype))
        return out, total

    return add_rms_norm
