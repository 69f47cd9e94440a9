"""From the hidden states of whole texts to what was asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from octavo.words.model_facts import PoolingFacts
from octavo.words.pooling_params import PoolingParams

POOLERS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda states: states.mean(dim=0),
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
}
"""Hidden states of one text [T, hidden_size] -> one vector. A text alone, so that no neighbour can change its bits."""


class Classifier(Protocol):
    """A model with labels."""

    def classify(self, hidden: Tensor) -> Tensor:
        """hidden: [R, hidden_size] -> float32 [R, num_labels]."""


def pool(states: Tensor, params: PoolingParams, facts: PoolingFacts, classifier: Classifier | None) -> Tensor:
    """states: the hidden states of one text, [T, hidden_size] -> float32, flat.

    Vectors have length 1 where the checkpoint says so, unless ``use_activation`` does; labels have probabilities: a
    single one its own, several such that they add up to 1.
    """
    if params.task in ("classify", "score") and classifier is not None:
        return _labels(classifier.classify(states[:1])[0], params)
    vectors = states.float() if params.task == "token_embed" else POOLERS[facts.kind](states.float())
    if params.dimensions is not None:
        vectors = vectors[..., : params.dimensions]
    wants_length_1 = facts.normalize if params.use_activation is None else params.use_activation
    # Of a shortened vector the length is 1 again where that of the whole was.
    return (F.normalize(vectors, dim=-1) if wants_length_1 else vectors).flatten()


def _labels(logits: Tensor, params: PoolingParams) -> Tensor:
    if params.use_activation is False:
        return logits
    return torch.sigmoid(logits) if logits.numel() == 1 else torch.softmax(logits, dim=-1)
