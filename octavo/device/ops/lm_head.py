"""lm_head: logits over the vocabulary."""

from __future__ import annotations

from collections.abc import Iterator

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


def row_tiles(num_rows: int, vocab_size: int, max_bytes: int = 64 << 20) -> Iterator[slice]:
    """Split rows so that one tile's logits take at most ``max_bytes`` (or one row), for prompts with logprobs."""
    step = max(1, max_bytes // (4 * vocab_size))
    for start in range(0, num_rows, step):
        yield slice(start, min(start + step, num_rows))
