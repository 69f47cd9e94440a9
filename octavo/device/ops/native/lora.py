"""lora by a native kernel: rows of one adapter are computed together, each to the same bits as alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from octavo.device.ops.lora import AdapterSlots, DenseSlots, LowRank, PackedUpdate
from octavo.device.ops.lora import lora as reference_lora
from octavo.device.ops.native.context import NativeContext
from octavo.device.ops.native.dtypes import is_bfloat16


class PackedSlots:
    """``AdapterSlots`` over a ``library.LoraSlots``; arguments as those of DenseSlots, float32 or bfloat16."""

    def __init__(
        self,
        native: NativeContext,
        num_slots: int,
        in_features: int,
        part_sizes: Sequence[int],
        dtype: torch.dtype,
        kept_as: torch.dtype | None = None,
    ) -> None:
        self._native = native
        self._dtype = dtype
        self._kept_as = kept_as
        self._slots = native.library.LoraSlots(num_slots, in_features, list(part_sizes), is_bfloat16(dtype))

    def pack(self, update: LowRank) -> PackedUpdate:
        kept = update.kept_as(self._kept_as, self._dtype)
        a, b = kept.a, kept.b
        shape = (a.shape[0], a.shape[1], b.shape[0])
        packed: PackedUpdate = self._native.library.pack_low_rank(
            a.data_ptr(), b.data_ptr(), *shape, kept.scale, is_bfloat16(a.dtype)
        )
        return packed

    def put(self, slot: int, packed: Sequence[Any | None]) -> None:
        for part, update in enumerate(packed):
            self._slots.put(slot, part, update)

    def add(self, y: Tensor, x: Tensor, row_slots: Tensor) -> Tensor:
        assert y.is_contiguous() and y.dtype in (x.dtype, torch.float32)
        assert x.dtype == self._dtype and row_slots.dtype == torch.int32
        x = x.contiguous()
        launch = self._slots.add(x.data_ptr(), row_slots.data_ptr(), y.data_ptr(), is_bfloat16(y.dtype))
        self._native.run(launch, len(x), x, row_slots, y)
        return y


def lora(native: NativeContext) -> Callable[..., Tensor]:
    """The op on adapters packed for ``native``; dense ones are packed for the one call."""

    def native_lora(y: Tensor, x: Tensor, adapters: AdapterSlots, row_slots: Tensor) -> Tensor:
        return reference_lora(y, x, _packed(native, adapters), row_slots)

    return native_lora


def _packed(native: NativeContext, adapters: AdapterSlots) -> AdapterSlots:
    if not isinstance(adapters, DenseSlots):
        return adapters
    updates = adapters.updates
    sizes = (len(updates), adapters.in_features, adapters.part_sizes)
    packed = PackedSlots(native, *sizes, adapters.dtype, adapters.kept_as)
    for slot, parts in enumerate(updates):
        packed.put(slot, [None if part is None else packed.pack(part) for part in parts])
    return packed
