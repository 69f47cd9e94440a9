"""Llamas with something of their own behind the last norm, for the tests of captured steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from octavo.device.models.llama import LlamaForCausalLM
from octavo.device.models.options import ModelOptions
from octavo.device.ops.kernels import Kernels
from octavo.words.model_facts import ModelFacts


class OddLlama(LlamaForCausalLM):
    def __init__(self, facts: ModelFacts, options: ModelOptions) -> None:
        super().__init__(facts, options)
        self.kernels: Kernels = options.kernels

    def forward(self, *args: Any) -> Tensor:
        return self.add_own(super().forward(*args))

    def add_own(self, hidden: Tensor) -> Tensor:
        raise NotImplementedError


class UnknownOpLlama(OddLlama):
    """Calls an op that the vocabulary lacks."""

    def add_own(self, hidden: Tensor) -> Tensor:
        return self.kernels.custom_op(softened, hidden)


def softened(hidden: Tensor) -> Tensor:
    return hidden.tanh() * 2


class SplitKLlama(OddLlama):
    """Has an op that sums in one part where there is one row and in four parts where there are more."""

    def add_own(self, hidden: Tensor) -> Tensor:
        return self.kernels.custom_op(split_k_mean, hidden)


def split_k_mean(hidden: Tensor) -> Tensor:
    parts = hidden.chunk(1 if len(hidden) == 1 else 4, dim=-1)
    total = parts[0].cumsum(dim=-1)[:, -1:]
    for part in parts[1:]:
        total = total + part.cumsum(dim=-1)[:, -1:]
    return hidden + total / hidden.shape[-1]


class TorchLlama(OddLlama):
    """Calls torch between ops, which a recording would miss."""

    def add_own(self, hidden: Tensor) -> Tensor:
        return hidden * 2


class WrongKernelLlama(OddLlama):
    """Has an op whose wrapper bakes the size of one step into its launch."""

    def add_own(self, hidden: Tensor) -> Tensor:
        native = self.kernels.native
        assert native is not None

        def scaled_by_size(hidden: Tensor) -> Tensor:
            is_bfloat16 = hidden.dtype == torch.bfloat16
            launch = native.library.scale(hidden.data_ptr(), hidden.shape[1], float(len(hidden)), is_bfloat16)
            native.run(launch, len(hidden), hidden)
            return hidden

        return native.op("scaled_by_size", scaled_by_size, has_kernel=True)(hidden)
