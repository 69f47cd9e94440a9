"""Token embedding and the output head that may share its weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from octavo.device.ops.embedding import embedding
from octavo.device.ops.lm_head import lm_head


class Embedding(nn.Module):
    """``weight`` [vocab_size, hidden_size]; rows come out times ``scale``."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: torch.dtype, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype), requires_grad=False)
        self.scale = scale

    def forward(self, token_ids: Tensor) -> Tensor:
        """token_ids: [T] int64 -> [T, hidden_size]."""
        return embedding(token_ids, self.weight, self.scale)


class LMHead(nn.Module):
    """The output embedding; ``tied_to`` shares the input embedding's parameter, which is then loaded once."""

    def __init__(
        self,
        vocab_size: int,
        hidden_size: int,
        *,
        dtype: torch.dtype,
        softcap: float | None = None,
        tied_to: Embedding | None = None,
    ) -> None:
        super().__init__()
        if tied_to is None:
            self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size, dtype=dtype), requires_grad=False)
        else:
            self.weight = tied_to.weight
        self.softcap = softcap

    def forward(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size] -> float32 [R, vocab_size]."""
        return lm_head(hidden, self.weight, self.softcap)
