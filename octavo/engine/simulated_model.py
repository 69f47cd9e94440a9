"""A model of no files, for the simulated executor: scheduler studies need its shape and nothing else."""

from __future__ import annotations

import zlib
from collections.abc import Callable

from octavo.words.model_facts import ModelFacts, RopeFacts

SIMULATED_MODEL = "simulated"
"""The model argument that names it."""

SIMULATED_FACTS = ModelFacts(
    architecture=SIMULATED_MODEL,
    source_architecture=SIMULATED_MODEL,
    num_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_heads=2,
    num_kv_heads=2,
    head_size=32,
    vocab_size=320,
    max_position=8192,
    norm_eps=1e-6,
    rope=RopeFacts(rotary_dim=32),
)


def token_function(vocab_size: int) -> Callable[[str, int], int]:
    """Tokens below ``vocab_size`` that look random and depend on request id and position alone."""

    def next_token(request_id: str, position: int) -> int:
        return zlib.crc32(f"{request_id}:{position}".encode()) % vocab_size

    return next_token
