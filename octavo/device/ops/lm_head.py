"""lm_head: logits over the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.device.ops.linear import LinearWeight


def lm_head(hidden: Tensor, weight: LinearWeight, softcap: float | None = None) -> Tensor:
    """Multiply each row by the output embedding.

    hidden: [R, hidden_size], R may be 0; weight: [vocab_size, hidden_size] in some format.
    Returns float32 [R, vocab_size]: sums are float32 and never rounded to the model's dtype. ``softcap`` c maps a
    logit z to c * tanh(z / c).
    """
    logits = weight.project(hidden, torch.float32)
    if softcap is not None:
        logits = torch.tanh(logits / softcap) * softcap
    return logits
