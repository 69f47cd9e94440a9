"""rms_norm by a native kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16
from octavo.device.ops.native.linear import room_for


def rms_norm(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/rms_norm``."""

    def rms_norm(
        x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0, reader: LinearWeight | None = None
    ) -> Tensor:
        x, width = x.contiguous(), x.shape[-1]
        assert weight.shape == (width,) and weight.dtype == x.dtype
        out, half = room_for(reader, native, x, width, x.dtype), is_bfloat16(x.dtype)
        launch = norm_launch(native, out)
        norm = launch(x.data_ptr(), 0, weight.data_ptr(), 0, out.data_ptr(), width, eps, weight_offset, half, False)
        native.run(norm, x.numel() // width, x, weight, out)
        return out

    return rms_norm


def norm_launch(native: NativeContext, out: Tensor) -> Callable[..., Any]:
    """Who launches a norm to such results."""
    return native.library.rms_norm_quantize if out.dtype == torch.uint8 else native.library.rms_norm
