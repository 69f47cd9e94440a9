"""add_rms_norm by a native kernel."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16
from octavo.device.ops.native.linear import room_for
from octavo.device.ops.native.rms_norm import norm_launch


def add_rms_norm(native: NativeContext) -> Callable[..., tuple[Tensor, Tensor]]:
    """The op with the contract of ``ops/add_rms_norm``."""

    def add_rms_norm(
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        weight_offset: float = 0.0,
        reader: LinearWeight | None = None,
    ) -> tuple[Tensor, Tensor]:
        x, residual, width = x.contiguous(), residual.contiguous(), x.shape[-1]
        assert x.shape == residual.shape and weight.shape == (width,)
        assert x.dtype == weight.dtype and residual.dtype in (x.dtype, torch.float32)
        out = room_for(reader, native, x, width, x.dtype)
        total = native.empty(x, *x.shape[1:], dtype=torch.float32)
        tensors = (x, residual, weight, total, out)
        addresses = (tensor.data_ptr() for tensor in tensors)
        halves = (is_bfloat16(x.dtype), is_bfloat16(residual.dtype))
        launch = norm_launch(native, out)(*addresses, width, eps, weight_offset, *halves)
        native.run(launch, x.numel() // width, *tensors)
        return out, total

    return add_rms_norm
