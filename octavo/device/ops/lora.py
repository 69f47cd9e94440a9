"""lora: what low-rank adapters add to a projection, each row its own adapter's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LowRank:
    """An adapter's update of one projection: scale * B A; a: [rank, in_features], b: [out_features, rank]."""

    a: Tensor
    b: Tensor
    scale: float

    @property
    def nbytes(self) -> int:
        return self.a.nbytes + self.b.nbytes

    def kept_as(self, dtype: torch.dtype | None, default: torch.dtype) -> LowRank:
        """In ``dtype``; None: ``default``, or bfloat16 where it is stored in it, for nothing is lost then."""
        if dtype is None:
            dtype = torch.bfloat16 if self.a.dtype == self.b.dtype == torch.bfloat16 else default
        return LowRank(self.a.to(dtype).contiguous(), self.b.to(dtype).contiguous(), self.scale)


class PackedUpdate(Protocol):
    """A ``LowRank`` in the form that a kernel reads."""

    @property
    def nbytes(self) -> int:
        """Memory it holds."""
        ...


class AdapterSlots(Protocol):
    """The adapters that one linear layer has at hand, by slot, in the form of some kernel.

    The layer may be several projections of one input, stacked: an adapter has an update, or None, for each.
    """

    def pack(self, update: LowRank) -> PackedUpdate:
        """The form in which ``put`` takes an update; it may be kept and put again. Safe in any thread."""
        ...

    def put(self, slot: int, packed: Sequence[Any | None]) -> None:
        """Set an adapter, as one packed update for each projection."""
        ...

    def add(self, y: Tensor, x: Tensor, row_slots: Tensor) -> Tensor:
        """See ``lora``."""
        ...


class DenseSlots:
    """Updates as they are, computed by plain torch.

    ``part_sizes`` are the rows of each stacked projection, ``dtype`` is that of x and y, ``kept_as`` that of updates:
    by default the same, or bfloat16 where they come in it.
    """

    def __init__(
        self,
        num_slots: int,
        in_features: int,
        part_sizes: Sequence[int],
        dtype: torch.dtype,
        kept_as: torch.dtype | None = None,
    ) -> None:
        self.in_features = in_features
        self.part_sizes = tuple(part_sizes)
        self.dtype = dtype
        self.kept_as = kept_as
        self.updates: list[Sequence[LowRank | None]] = [(None,) * len(self.part_sizes) for _ in range(num_slots)]
        self._columns = list(pairwise(accumulate(self.part_sizes, initial=0)))

    def pack(self, update: LowRank) -> LowRank:
        return update.kept_as(self.kept_as, self.dtype)

    def put(self, slot: int, packed: Sequence[LowRank | None]) -> None:
        self.updates[slot] = tuple(packed)

    def add(self, y: Tensor, x: Tensor, row_slots: Tensor) -> Tensor:
        for slot, updates in enumerate(self.updates):
            rows = (row_slots == slot).nonzero()[:, 0]
            for (start, end), update in zip(self._columns, updates, strict=True):
                if update is not None and len(rows):
                    low = x[rows].float() @ update.a.float().T * update.scale
                    y[rows, start:end] = (y[rows, start:end].float() + low @ update.b.float().T).to(y.dtype)
        return y


def lora(y: Tensor, x: Tensor, adapters: AdapterSlots, row_slots: Tensor) -> Tensor:
    """Add to each row of a projection's results what the row's adapter says (Hu et al., 2021), and return them.

    y:         [T, out_features], what the layer's own weight makes of x, in x's dtype or float32; written in place.
    x:         [T, in_features].
    row_slots: [T] int32, the slot of each row's adapter; a row of slot -1 is left as it is, to the bit.
    Both products and the sum are float32, rounded once to y's dtype.
    """
    return adapters.add(y, x, row_slots)
