"""The explicit argument that carries a step's attention metadata through a model's forward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from octavo.device.attention.metadata import AttentionMetadata


@dataclass(frozen=True)
class GivenRows:
    """Embeddings from outside: ``values`` [N, hidden_size] float32 for the step's tokens ``rows`` [N] int64."""

    rows: Tensor
    values: Tensor


@dataclass(frozen=True)
class ForwardContext:
    """One forward pass: ``metadata`` by attention layer name, and the rows of the step, padding included.

    Model code hands it on and never looks inside; layers of one KV group share one metadata object. Encoders keep
    nothing; they take ``query_start_loc`` [R + 1] int32, and ``token_types`` [T] int64 where a step has pairs of texts.
    """

    metadata: Mapping[str, AttentionMetadata]
    num_tokens: int
    query_start_loc: Tensor | None = None
    token_types: Tensor | None = None
    given: GivenRows | None = None

    def with_given(self, embedded: Tensor) -> Tensor:
        """The embedded tokens of the step, [T, hidden_size], with those that were given in their place."""
        if self.given is not None:
            embedded[self.given.rows] = self.given.values.to(embedded.dtype)
        return embedded
