"""rms_norm by a native kernel."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16


def rms_norm(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/rms_norm``."""
    launch = native.library.rms_norm

    def rms_norm(x: Tensor, weight: Tensor, eps: float, weight_offset: float = 0.0) -> Tensor:
        x, width = x.contiguous(), x.shape[-1]
        assert weight.shape == (width,) and weight.dtype == x.dtype
        out, half = native.empty(x, *x.shape[1:]), is_bfloat16(x.dtype)
        norm = launch(x.data_ptr(), 0, weight.data_ptr(), 0, out.data_ptr(), width, eps, weight_offset, half, False)
        native.run(norm, x.numel() // width, x, weight, out)
        return out

    return rms_norm
