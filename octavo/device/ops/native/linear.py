"""Native linear and lm_head: weights packed once, results bitwise the same in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from octavo.device.ops.linear import DenseWeight, LinearWeight
from octavo.device.ops.linear import linear as reference_linear
from octavo.device.ops.lm_head import lm_head as reference_lm_head
from octavo.device.ops.lm_head_best import lm_head_best as reference_lm_head_best
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16

PACKED_DTYPES = (torch.float32, torch.bfloat16)
_DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class PackedWeight:
    """A ``library.PackedMatrix`` of any number format as an operand of the ops."""

    def __init__(self, native: NativeContext, matrix: Any, dtype: torch.dtype, format: str) -> None:
        """dtype: of the activations, one of ``PACKED_DTYPES`` that the matrix takes. format: its name, for people."""
        self.matrix = matrix
        self.format = format
        self.dtype = dtype
        self.out_features, self.in_features = matrix.num_columns, matrix.k
        self._native = native
        self._half = is_bfloat16(dtype)

    @property
    def reads_quantized(self) -> bool:
        """Whether its kernels multiply rows that are quantised before, as ``room_for`` has room for."""
        return self.matrix.quantized_row_bytes > 0

    @property
    def nbytes(self) -> int:
        """Memory the packed weight holds."""
        return self.matrix.bytes

    def project(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        x, rows = self._checked(x), x.shape[:-1].numel()
        out = self._native.empty(x, *x.shape[1:-1], self.out_features, dtype=dtype or self.dtype)
        launch = self.matrix.project(x.data_ptr(), *self._kind(x), out.data_ptr(), is_bfloat16(out.dtype))
        self._native.run(launch, rows, x, out)
        return out

    def gate(self, x: Tensor, activation: str, reader: LinearWeight | None = None) -> Tensor:
        """``gate_up_activation`` (device/ops) of a matrix whose first half of rows are gates."""
        x = self._checked(x)
        reader = reader if self.reads_quantized else None
        out = room_for(reader, self._native, x, self.out_features // 2, self.dtype)
        is_gelu, is_quantized = activation == "gelu_pytorch_tanh", out.dtype == torch.uint8
        launch = self.matrix.gate(x.data_ptr(), *self._kind(x), is_gelu, out.data_ptr(), is_quantized)
        self._native.run(launch, len(x), x, out)
        return out

    def room(self, x: Tensor) -> Tensor:
        """Where ``project_heads`` projects to, [T, out_features] float32."""
        return self._native.empty(x, self.out_features, dtype=torch.float32)

    def project_heads(self, x: Tensor, layer: Any, *tensors: Tensor) -> None:
        """``qkv_rope_write`` (device/ops) by a ``library.RopeWriteLayer``; ``tensors`` are all it has addresses of."""
        x = self._checked(x)
        self._native.run(layer.launch_from(self.matrix, x.data_ptr(), *self._kind(x)), len(x), x, *tensors)

    def best(self, x: Tensor, softcap: float | None) -> Tensor:
        """``lm_head_best`` (device/ops)."""
        x = self._checked(x)
        out = self._native.empty(x, 2, dtype=torch.float64)
        launch = self.matrix.best(x.data_ptr(), self._half, softcap or 0.0, out.data_ptr())
        self._native.run(launch, len(x), x, out)
        return out

    def rows(self, ids: Tensor) -> Tensor:
        """ids: [T] int64 below out_features -> those rows of the weight, [T, in_features]."""
        ids = ids.contiguous()
        out = self._native.empty(ids, self.in_features, dtype=self.dtype)
        launch = self.matrix.unpack_rows(ids.data_ptr(), out.data_ptr(), self._half)
        self._native.run(launch, len(ids), ids, out)
        return out

    def _kind(self, x: Tensor) -> tuple[bool, bool]:
        """Whether the activations are bfloat16, and whether these are quantised already."""
        return self._half, x.dtype == torch.uint8

    def _checked(self, x: Tensor) -> Tensor:
        if x.dtype == torch.uint8 and self.reads_quantized and x.shape[1:] == (self.matrix.quantized_row_bytes,):
            return x
        if x.dtype != self.dtype or x.shape[-1] != self.in_features:
            raise TypeError(f"rows of {self.in_features} {self.dtype} are asked, not {list(x.shape)} {x.dtype}")
        return x.contiguous()


def room_for(
    reader: LinearWeight | None, native: NativeContext, rows: Tensor, width: int, dtype: torch.dtype
) -> Tensor:
    """Room for rows of ``width`` numbers that ``reader`` multiplies: as numbers, or uint8, quantised for it."""
    if isinstance(reader, PackedWeight) and reader.reads_quantized:
        assert reader.in_features == width and reader.dtype == dtype
        return native.empty(rows, reader.matrix.quantized_row_bytes, dtype=torch.uint8)
    return native.empty(rows, *rows.shape[1:-1], width, dtype=dtype)


def pack_dense(
    native: NativeContext, weight: Tensor, bias: Tensor | None = None, *, gated: bool = False
) -> PackedWeight:
    """Copy a weight (and bias) into the library's own layout; the tensors are not kept.

    ``gated``: the first half of the rows are gates, and ``PackedWeight.gate`` computes both halves in one pass.

    weight: [out_features, in_features], bias: [out_features] or None; one dtype of ``PACKED_DTYPES``.
    """
    weight = weight.contiguous()
    bias = None if bias is None else bias.to(weight.dtype).contiguous()
    matrix = native.library.PackedLinear(
        native.pool,
        _DTYPE_NAMES[weight.dtype],
        weight.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        *weight.shape,
        gated,
    )
    return PackedWeight(native, matrix, weight.dtype, _DTYPE_NAMES[weight.dtype])


def linear(native: NativeContext) -> Callable[..., Tensor]:
    """The op on weights packed for ``native``; a dense weight is packed for the one call."""

    def native_linear(x: Tensor, weight: LinearWeight) -> Tensor:
        return reference_linear(x, packed(native, weight))

    return native_linear


def lm_head(native: NativeContext) -> Callable[..., Tensor]:
    """As ``linear``."""

    def native_lm_head(hidden: Tensor, weight: LinearWeight, softcap: float | None = None) -> Tensor:
        logits = reference_lm_head(hidden, packed(native, weight))
        if softcap is not None:
            launch = native.library.softcap(logits.data_ptr(), logits.shape[1], softcap)
            native.run(launch, len(logits), logits)
        return logits

    return native_lm_head


def lm_head_best(native: NativeContext) -> Callable[..., Tensor]:
    """As ``linear``; a task's logits are looked through while they lie in a cache, and never stored."""

    def native_lm_head_best(hidden: Tensor, weight: LinearWeight, softcap: float | None = None) -> Tensor:
        weight = packed(native, weight)
        if isinstance(weight, PackedWeight):
            return weight.best(hidden, softcap)
        return reference_lm_head_best(hidden, weight, softcap)

    return native_lm_head_best


def packed(native: NativeContext, weight: LinearWeight) -> LinearWeight:
    """Return ``weight`` as the kernels read it: itself, unless it is dense."""
    return pack_dense(native, weight.weight, weight.bias) if isinstance(weight, DenseWeight) else weight
