"""A weight matrix in some format, as layers hold it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.native.quantized import StoredRows


class Weight(nn.Module):
    """A layer whose parameters are those of ``method``; who derives from it creates them."""

    def __init__(self, method: QuantMethod) -> None:
        super().__init__()
        self.method = method

    @property
    def operand(self) -> LinearWeight:
        """The weights as the fused ops take them."""
        return self.method.operand(self)

    def load_rows(self, stack: Sequence[StoredRows]) -> None:
        """To be called in place of filling a weight that has no memory."""
        self.method.load_rows(self, stack)

    def finish_loading(self) -> None:
        """To be called when the parameters are filled."""
        self.method.finish(self)
