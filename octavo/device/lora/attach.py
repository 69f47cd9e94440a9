"""Gives the linear layers of a loaded model a place for adapters; the model does not know."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from octavo.device.layers.linear import Linear
from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.layers.weight_map import WeightMap
from octavo.device.loader.weight_map import NameResolver
from octavo.device.ops.kernels import Kernels
from octavo.device.ops.linear import LinearWeight
from octavo.device.ops.lora import AdapterSlots
from octavo.device.ops.native.quantized import StoredRows

MakeSlots = Callable[[int, Sequence[int]], AdapterSlots]
"""(in_features, rows of each stacked projection) -> the slots of a layer."""


class AdaptableModel(Protocol):
    """What ``attach`` reads of a model, which is an ``nn.Module``."""

    weight_map: WeightMap


@dataclass(frozen=True, slots=True)
class AdaptedLayer:
    """A linear layer with slots. ``projections`` are those it stacks, by the names that Hugging Face gives them."""

    projections: tuple[str, ...]
    slots: AdapterSlots


@dataclass(frozen=True, slots=True)
class AdaptedWeight:
    """A weight as an operand of the ops, and what adapters add to it. ``row_slots``: of all rows a step may have."""

    base: LinearWeight
    slots: AdapterSlots
    row_slots: Tensor
    kernels: Kernels

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def project(self, x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        projected = self.base.project(x, dtype)
        result: Tensor = self.kernels.lora(projected, x, self.slots, self.row_slots[: len(x)])
        return result

    def rows(self, ids: Tensor) -> Tensor:
        return self.base.rows(ids)


class AdaptedMethod:
    """The format of a layer whose operand has adapters on top."""

    def __init__(self, base: QuantMethod, slots: AdapterSlots, row_slots: Tensor, kernels: Kernels) -> None:
        self.name = base.name
        self._base = base
        self._slots = slots
        self._row_slots = row_slots
        self._kernels = kernels

    def create_weights(
        self, layer: nn.Module, in_features: int, out_features: int, *, bias: bool, dtype: torch.dtype
    ) -> None:
        self._base.create_weights(layer, in_features, out_features, bias=bias, dtype=dtype)

    def load_rows(self, layer: nn.Module, stack: Sequence[StoredRows]) -> None:
        self._base.load_rows(layer, stack)

    def finish(self, layer: nn.Module) -> None:
        self._base.finish(layer)

    def operand(self, layer: nn.Module) -> AdaptedWeight:
        return AdaptedWeight(self._base.operand(layer), self._slots, self._row_slots, self._kernels)


def attach(model: nn.Module, row_slots: Tensor, make_slots: MakeSlots) -> list[AdaptedLayer]:
    """Put slots on every linear layer that the model's weight map names projections for.

    ``row_slots``: [most rows of a step] int32, the slot of each row of the step that is computed.
    """
    resolver = NameResolver(model.weight_map, gguf=False)  # type: ignore[arg-type]  # an AdaptableModel
    found = []
    for name, layer in model.named_modules():
        if isinstance(layer, Linear):
            sources = sorted(resolver.sources(f"{name}.weight"), key=lambda source: source[1])
            bounds = [*(start for _, start in sources), layer.out_features]
            slots = make_slots(layer.in_features, [end - start for start, end in pairwise(bounds)])
            layer.method = AdaptedMethod(layer.method, slots, row_slots, layer.kernels)
            found.append(AdaptedLayer(tuple(source.removesuffix(".weight") for source, _ in sources), slots))
    return found
