"""What came of capturing a model's forward pass."""

from __future__ import annotations

import msgspec


class GraphReport(msgspec.Struct, frozen=True, kw_only=True):
    """``captured`` says that steps are replayed; if not, ``reason`` says why they run op by op.

    ``num_ops`` counts the native kernels of one forward pass, logits included; ``splits`` names the ops, with their
    places in the model, that a replay calls from Python between them. ``arena_bytes`` is the address space of
    intermediate results, for the largest step.
    """

    captured: bool
    reason: str
    num_ops: int = 0
    splits: list[str] = []
    arena_bytes: int = 0
