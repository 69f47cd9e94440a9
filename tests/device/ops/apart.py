from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.device.ops.native.linear import PackedWeight


@dataclass(frozen=True)
class Apart:
    """A weight whose product is an op of its own, as it is of one with adapters."""

    packed: PackedWeight

    @property
    def dtype(self) -> torch.dtype:
        return self.packed.dtype

    def project(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        assert x.dtype == self.dtype
        return self.packed.project(x, dtype)

    def rows(self, ids: Tensor) -> Tensor:
        return self.packed.rows(ids)
