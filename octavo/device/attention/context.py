"""The explicit argument that carries a step's attention metadata through a model's forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from octavo.device.attention.metadata import AttentionMetadata


@dataclass(frozen=True)
class ForwardContext:
    """One forward pass: ``metadata`` by attention layer name, and the rows of the step, padding included.

    Model code hands it on and never looks inside; layers of one KV group share one metadata object.
    """

    metadata: Mapping[str, AttentionMetadata]
    num_tokens: int
