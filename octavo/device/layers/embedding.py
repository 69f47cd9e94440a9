"""Token embedding and the output head that may share its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.device.layers.quantization.method import QuantMethod
from octavo.device.layers.weight import Weight
from octavo.device.ops.kernels import Kernels


class VocabWeight(Weight):
    """One row [hidden_size] per token, in the format of ``method``; what embedding and head have in common."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, method: QuantMethod) -> None:
        super().__init__(method)
        method.create_weights(self, hidden_size, vocab_size, bias=False, dtype=dtype)


class Embedding(VocabWeight):
    """Rows come out times ``scale``."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        method: QuantMethod,
        kernels: Kernels,
        scale: float = 1.0,
    ) -> None:
        super().__init__(vocab_size, hidden_size, dtype=dtype, method=method)
        self.kernels = kernels
        self.scale = scale

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: [T] int64 -> [T, hidden_size]."""
        return self.kernels.embedding(token_ids, self.operand, self.scale)


class LMHead(nn.Module):
    """The output embedding: a weight of its own, or the input embedding's, which is then loaded once."""

    def __init__(self, weight: VocabWeight, *, kernels: Kernels, softcap: float | None = None) -> None:
        super().__init__()
        self.rows = weight
        self.kernels = kernels
        self.softcap = softcap

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size] -> float32 [R, vocab_size]."""
        return self.kernels.lm_head(hidden, self.rows.operand, self.softcap)

    def best(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size] -> [R, 2], the largest logit and its id, as ``lm_head_best`` has them."""
        return self.kernels.lm_head_best(hidden, self.rows.operand, self.softcap)
