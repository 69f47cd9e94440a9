"""Log-probabilities of the chosen (or given) token and of the best candidates, as rows for the front end."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from octavo.device.sample.candidates import best_candidates, ranks
from octavo.words.messages import LogprobsRow

WHOLE_VOCABULARY = -1


def logprob_rows(logits: Tensor, token_ids: Tensor, num_best: Sequence[int]) -> list[LogprobsRow]:
    """One row per position: the token of ``token_ids`` with its rank, then its ``num_best`` best candidates.

    logits: [R, V] float32; an id at -inf is no candidate, so a row may be shorter than asked. token_ids: [R] int64.
    ``num_best`` -1 means the whole vocabulary.
    """
    vocab_size = logits.shape[-1]
    wanted = [vocab_size if k == WHOLE_VOCABULARY else min(k, vocab_size) for k in num_best]
    logprobs = torch.log_softmax(logits, dim=-1)
    given = logprobs.gather(-1, token_ids[:, None])
    # Ranks and order come from the logits: distinct logits may round to one log-probability.
    _, best = best_candidates(logits, max(wanted)) if max(wanted) else (None, token_ids.new_empty(len(wanted), 0))
    columns = zip(
        token_ids.tolist(),
        given[:, 0].tolist(),
        ranks(logits, token_ids).tolist(),
        best.tolist(),
        logprobs.gather(-1, best).tolist(),
        wanted,
        strict=True,
    )
    return [_row(*column) for column in columns]


def _row(token_id: int, logprob: float, rank: int, ids: list[int], values: list[float], k: int) -> LogprobsRow:
    possible = sum(1 for value in values[:k] if value != -math.inf)
    return LogprobsRow([token_id, *ids[:possible]], [logprob, *values[:possible]], rank)
