"""Weights of a few bits as an operand of the ops: GGUF's own blocks, or quantised while they are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.linear import PackedWeight

NATIVE_FORMATS = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
"""GGUF types that kernels multiply as they are."""

QUANTIZED_FORMATS = ("Q8_0", "Q4_1", "int8")
"""What other numbers can be quantised to; int8 has one scale per row of the weight."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a weight as a file has them: ``data`` [num_rows, row bytes] uint8, contiguous, of the type named.

    ``type`` is GGUF's name (F32, BF16, Q4_1 ...). ``order`` [num_rows] int64 says which of them each row is, None: as
    they are.
    """

    type: str
    data: npt.NDArray[np.uint8]
    order: npt.NDArray[np.int64] | None = None


def float_rows(weight: Tensor) -> StoredRows:
    """A float32 matrix, as if it were stored; shares its memory."""
    return StoredRows("F32", weight.contiguous().numpy().view(np.uint8))


def pack_quantized(
    native: NativeContext,
    stack: Sequence[tuple[str, StoredRows]],
    in_features: int,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> PackedWeight:
    """Pack matrices of the same input one below the other, each in the format named with it.

    Rows stored in that format keep their bits; others are quantised (``QUANTIZED_FORMATS``). Nothing given is kept.
    bias: [out_features] or None. dtype: of the activations.
    """
    rows: list[tuple[str, str, int, int, int]] = []
    for format_name, stored in stack:
        assert stored.data.flags.c_contiguous and stored.data.dtype == np.uint8
        order = 0 if stored.order is None else stored.order.ctypes.data
        rows.append((format_name, stored.type, stored.data.ctypes.data, len(stored.data), order))
    wide = None if bias is None else bias.float().contiguous()
    address = 0 if wide is None else wide.data_ptr()
    matrix: Any = native.library.QuantizedMatrix(native.pool, in_features, rows, address)
    return PackedWeight(native, matrix, dtype, "+".join(dict.fromkeys(format_name for format_name, _ in stack)))
