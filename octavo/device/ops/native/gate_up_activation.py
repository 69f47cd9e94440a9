"""gate_up_activation: one native kernel; of a weight that is not packed, the projection and a kernel for the rest."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from octavo.device.ops.gate_up_activation import ACTIVATIONS
from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16
from octavo.device.ops.native.linear import PackedWeight


def gate_up_activation(native: NativeContext) -> Callable[..., Tensor]:
    """The op with the contract of ``ops/gate_up_activation``."""
    launch = native.library.gated_activation

    def gate_up_activation(
        x: Tensor, weight: LinearWeight, activation: str, reader: LinearWeight | None = None
    ) -> Tensor:
        assert activation in ACTIVATIONS
        if isinstance(weight, PackedWeight):
            return weight.gate(x, activation, reader)
        projected = weight.project(x).contiguous()
        width, half = projected.shape[1] // 2, is_bfloat16(projected.dtype)
        out = native.empty(projected, width)
        gate = launch(projected.data_ptr(), out.data_ptr(), width, activation == "gelu_pytorch_tanh", half)
        native.run(gate, len(x), projected, out)
        return out

    return gate_up_activation
