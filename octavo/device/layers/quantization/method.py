"""The seam for weight formats: what parameters a linear layer has, and what they are to the ops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.quantized import StoredRows


class QuantMethod(Protocol):
    """One weight format. Stateless; a layer keeps the parameters that ``create_weights`` gave it."""

    name: str

    def create_weights(
        self, layer: nn.Module, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype
    ) -> None:
        """Register uninitialised parameters on the layer. A weight on the device "meta" wants ``load_rows``."""
        ...

    def load_rows(self, layer: nn.Module, stack: Sequence[StoredRows]) -> None:
        """Take the weight as it is stored, from the top down; the file stays mapped until ``finish``."""
        ...

    def finish(self, layer: nn.Module) -> None:
        """Called once, when the layer's parameters are filled: they may be replaced by another form of them.

        What they are then is a tensor no more: an attribute ``packed`` of the layer, with its ``nbytes``.
        """
        ...

    def operand(self, layer: nn.Module) -> LinearWeight:
        """The layer's weights as the ops take them."""
        ...
