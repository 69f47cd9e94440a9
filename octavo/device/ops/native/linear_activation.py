"""linear_activation by native kernels: the projection, and then its activation in place."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16
from octavo.device.ops.native.linear import packed


def linear_activation(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/linear_activation``."""
    library = native.library
    kinds = {
        "gelu": library.ACTIVATION_GELU,
        "gelu_new": library.ACTIVATION_GELU_TANH,
        "relu": library.ACTIVATION_RELU,
        "tanh": library.ACTIVATION_TANH,
    }

    def linear_activation(x: Tensor, weight: LinearWeight, activation: str) -> Tensor:
        out = packed(native, weight).project(x).contiguous()
        width, address = out.shape[-1], out.data_ptr()
        launch = library.activation(address, address, width, kinds[activation], is_bfloat16(out.dtype))
        native.run(launch, out.numel() // width, out)
        return out

    return linear_activation
